"""Classifiers in closed form from a single upload: nothing is trained by gradients.

The clients send sums over the features of a frozen network once, before the first round, and the server solves for the
classifier. The body is pretrained, or random.
"""
