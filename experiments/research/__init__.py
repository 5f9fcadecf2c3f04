"""Studies of their own beside those of papers: the theory of collapse; rank and accuracy."""
