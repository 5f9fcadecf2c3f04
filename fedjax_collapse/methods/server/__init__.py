"""Methods at the server and on the way there: how uploads are bounded, compressed, perturbed and applied.

Local training is federated averaging's. They clip or sparsify uploads, add noise, choose the server's step, or measure
BatchNorm's statistics on the new model.
"""
