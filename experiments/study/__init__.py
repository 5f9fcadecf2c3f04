"""Training a study: its folder, processes, console, and the provenance of each start."""
