"""Studies beyond those of papers: the theory of collapse and of missing classes; rank and accuracy."""
