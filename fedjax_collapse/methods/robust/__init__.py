"""Attacks of malicious clients, and aggregation at the server that withstands them.

An attack changes its clients' training batches or uploads. A robust rule replaces the weighted mean of the updates by a
selection, a median or a bounded mean.
"""
