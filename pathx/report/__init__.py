"""Interactive reports: results as pages that open with a double click, offline."""
