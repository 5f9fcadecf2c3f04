"""How images and index files are read, and what was once read is kept. ``data/sources`` is the way in."""
