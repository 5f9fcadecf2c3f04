"""Methods that aggregate low-rank adapters: the mean of products is not the product of the means.

They freeze one factor, correct the frozen weights, decompose the mean product, or average slices of the ranks. They
need a network with adapters (``LoRA``).
"""
