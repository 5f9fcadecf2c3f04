"""Declarations of options by annotations of fields, and the checks, help and builders computed from them."""
