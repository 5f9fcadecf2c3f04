"""Personalised methods: each client is evaluated with a personal model.

A part of the network stays at its client, a second model is trained next to the shared one, or the server mixes
models for each client. They need own test rows of the clients (``own_tests``).
"""
