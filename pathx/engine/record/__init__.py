"""Any module as one list of aten operations."""
