"""How a convolution is computed, one way a file; ``convolution.py`` chooses among them."""
