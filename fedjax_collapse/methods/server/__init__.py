"""Methods that bound, compress, perturb or apply uploads.

Local training is federated averaging's. They clip or sparsify uploads, add noise, choose the server's step, or measure
BatchNorm's statistics on the new model.
"""
