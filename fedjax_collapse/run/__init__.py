"""A whole run: rounds, evaluation, metrics, checkpoints, and loading what a run has stored."""
