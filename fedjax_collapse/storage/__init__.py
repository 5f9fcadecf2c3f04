"""The storage of a run: rows and arrays of its rounds, checkpoints, and a fingerprint of the run."""
