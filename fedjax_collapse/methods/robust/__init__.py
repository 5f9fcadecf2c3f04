"""Malicious clients: attacks that clients make on training, and aggregation at the server that withstands them.

An attack changes what its clients train on or upload. A robust rule replaces the weighted mean of the updates by a
selection, a median or a bounded mean.
"""
