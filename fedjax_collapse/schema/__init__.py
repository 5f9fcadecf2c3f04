"""The declarations of options, annotations of records' fields, and everything that is computed from them."""
