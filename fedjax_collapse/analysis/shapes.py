"""Shapes of the arrays that measures take; a row for each example or class, and features centred or not."""

import numpy as np
from jaxtyping import Float, Int

Features = Float[np.ndarray, "examples features"]
Labels = Int[np.ndarray, " examples"]
Logits = Float[np.ndarray, "examples classes"]
ClassVectors = Float[np.ndarray, "classes features"]  # such as class means, or the rows of a classifier's weight
Vector = Float[np.ndarray, " features"]  # such as a mean
Spectrum = Float[np.ndarray, " features"]  # eigenvalues of a covariance, descending
Values = Float[np.ndarray, " values"]  # singular values, descending
