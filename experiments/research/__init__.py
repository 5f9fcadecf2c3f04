"""Studies beyond those of papers: the theory of collapse; rank and accuracy."""
