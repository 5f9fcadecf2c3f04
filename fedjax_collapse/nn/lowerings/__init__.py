"""Lowerings of convolutions, one per file; ``convolution.py`` chooses among them."""
