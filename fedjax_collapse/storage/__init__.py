"""What a run keeps: rows and arrays of its rounds, checkpoints, and which run they belong to."""
