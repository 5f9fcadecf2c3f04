"""Networks, one a file; a new file is found by its name."""
