"""Shapes of the arrays that losses take; one row for each example of a batch."""

from jaxtyping import Array, Bool, Float, Int, Num

Features = Float[Array, "batch features"]
Logits = Float[Array, "batch classes"]
Labels = Int[Array, " batch"]
Mask = Bool[Array, " batch"]  # whether a row is true; others are padding, which must not change the result
Counts = Num[Array, " classes"]  # of the client's training examples
Value = Float[Array, ""]
