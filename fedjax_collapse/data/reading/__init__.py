"""Readers of images, texts, tables and index files, and a cache of their results, for ``data/sources``."""
