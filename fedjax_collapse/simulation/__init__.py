"""A whole run: rounds, their evaluation and measurement, and what happens where numbers are not finite."""
