"""Methods for the classifier, which label skew biases most: training suppresses classes that a client lacks.

They shift or scale logits by a client's class counts, replace the classifier by a fixed simplex, or retrain it on
virtual features at the server.
"""
