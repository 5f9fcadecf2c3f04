"""Weights and networks of other libraries: PyTorch, Hugging Face, and the JAX codes of vision transformers."""
