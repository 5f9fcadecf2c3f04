"""What the outputs of a traced function depend on."""

from collections.abc import Sequence
from typing import Any


def dependences(jaxpr: Any, inputs: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Returns the inputs that each output depends on, by the names that are given for each of them.

    All outputs of a loop depend on everything that enters the loop.
    """
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(variable):
        return frozenset() if is_literal(variable) else known.get(variable, frozenset())

    for equation in jaxpr.eqns:
        given = list(map(of, equation.invars))
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit", "closed_call"):
            found = dependences(getattr(inner, "jaxpr", inner), given)
        else:
            found = [frozenset().union(*given)] * len(equation.outvars)
        known |= zip(equation.outvars, found, strict=True)
    return list(map(of, jaxpr.outvars))


def is_literal(variable: Any) -> bool:
    """Returns whether an operand of an equation is a constant that is written there."""
    return hasattr(variable, "val")
