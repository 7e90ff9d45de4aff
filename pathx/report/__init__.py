"""Interactive reports: results as pages that open with a double click, offline."""

from pathx.callable import make_callable

make_callable(__name__, "pathx.report.build")
