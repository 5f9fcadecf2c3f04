"""The user's functions are called here while programs are traced, so that what is wrong with them is one line."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.source_code import is_users

_LONGEST = 300  # characters of a reason


def explained(what: str, error: BaseException) -> UserError:
    """In one line what the user's own code, or the library's with such options, ended with, and where in the user's
    code; a UserError as it is."""
    if isinstance(error, UserError):
        return error
    frames = traceback.walk_tb(error.__traceback__)
    named = [(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line) for frame, line in frames]
    places = [f", {file}:{line}" for name, file, line in named if file[:1] != "<" and is_users(name, Path(file))]
    reason = " ".join(str(error).split())[:_LONGEST]
    kind = type(error).__name__ + "".join(places[-1:])
    return UserError(f"{what} ({kind})" + (f": {reason}" if reason else ""))


def call(what: str, function: Callable, *arguments: Any) -> Any:
    """What the function returns.

    Raises:
        UserError: ``explained``, in place of any other exception, which is the error's cause.
    """
    try:
        return function(*arguments)
    except Exception as error:
        raise explained(what, error) from error


def call_loss(what: str, function: Callable, *arguments: Any) -> jax.Array:
    """The same of a loss.

    Raises:
        UserError: also if it returns anything but a real number.
    """
    loss = call(what, function, *arguments)
    is_real = isinstance(loss, (jax.Array, float)) and jnp.issubdtype(jnp.result_type(loss), jnp.floating)
    if not is_real or jnp.ndim(loss):
        got = f"{loss.dtype}{list(loss.shape)}" if isinstance(loss, jax.Array) else type(loss).__name__
        raise UserError(f"{what}: it returned {got}, expected one float, the mean over the batch")
    return loss
