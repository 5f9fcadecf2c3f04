"""Formats of files in which examples belong to natural clients."""
