"""Simulation of a whole run: rounds, their evaluation and measurement, and the treatment of non-finite values."""
