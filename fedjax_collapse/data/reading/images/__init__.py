"""Formats of files with images."""
