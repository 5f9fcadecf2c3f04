"""Checks and calls the user's functions, and turns errors into one-line messages."""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import UserError
from fedjax_collapse.schema.source_code import is_users

_LONGEST = 300  # characters of a reason
_LONGEST_LINE = 400


def explained(what: str, error: BaseException) -> UserError:
    """Returns a one-line error about an exception from the user's code, or from the library with the user's options.

    The message names the exception and its place in the user's code. A UserError is returned unchanged.
    """
    if isinstance(error, UserError):
        return error
    frames = traceback.walk_tb(error.__traceback__)
    named = [(frame.f_globals.get("__name__", ""), frame.f_code.co_filename, line) for frame, line in frames]
    places = [f", {file}:{line}" for name, file, line in named if file[:1] != "<" and is_users(name, Path(file))]
    reason = " ".join(str(error).split())[:_LONGEST]
    kind = type(error).__name__ + "".join(places[-1:])
    return UserError(f"{what} ({kind})" + (f": {reason}" if reason else ""))


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turns an error of its body into one of ``explained``, also code that exits the process."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise explained(what, error) from error


@contextlib.contextmanager
def naming(what: object) -> Iterator[None]:
    """Prefixes a UserError of its body with what it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from error


def call(what: str, function: Callable, *arguments: Any) -> Any:
    """Calls the function and returns its result.

    Raises:
        UserError: made by ``explained`` from any other exception, which is its cause.
    """
    with explaining(what):
        return function(*arguments)


def check_signature(
    what: str, function: Callable, *given: str, by_name: Sequence[str] = (), has_options: bool = False
) -> None:
    """Raises UserError unless the function can be called with these arguments, by position and by name.

    ``has_options``: whether it may need further arguments, which are checked elsewhere.
    """
    if not callable(function):
        raise UserError(f"{what}: it is a {type(function).__name__}, expected a function of {', '.join(given)}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some built-in functions
        return
    try:
        (signature.bind_partial if has_options else signature.bind)(*given, **dict.fromkeys(by_name))
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(
            f"{what}: it is {name}({', '.join(signature.parameters)}), expected {name}({', '.join((*given, *by_name))})"
        ) from None


def call_loss(what: str, function: Callable, *arguments: Any) -> jax.Array:
    """Calls a loss function and checks its result.

    Raises:
        UserError: as ``call``, and if the result is not one real number.
    """
    loss = call(what, function, *arguments)
    is_real = isinstance(loss, (jax.Array, float)) and jnp.issubdtype(jnp.result_type(loss), jnp.floating)
    if not is_real or jnp.ndim(loss):
        got = f"{loss.dtype}{list(loss.shape)}" if isinstance(loss, jax.Array) else type(loss).__name__
        raise UserError(f"{what}: it returned {got}, expected one float, the mean over the batch")
    return jnp.asarray(loss)


def one_line(error: BaseException) -> str:
    """Returns the error's message without line breaks; only the last line of a traceback in it is included."""
    head, *rest = str(error).split("Traceback (most recent call last):")
    last = rest[-1].strip().splitlines()[-1] if rest else ""
    return " ".join(f"{head} {last}".split()) or type(error).__name__


def explain(error: BaseException) -> str:
    """Returns a one-line message; the type is added unless the error is a UserError."""
    text, kind = one_line(error), type(error).__name__
    if isinstance(error, UserError) or text == kind:
        return text
    return f"{kind}: {text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + ' ...'}"
