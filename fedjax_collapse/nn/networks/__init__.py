"""Networks, one per file; a new file is found by its name."""
