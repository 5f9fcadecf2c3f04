"""One-line messages of errors."""

import dis

from fedjax_collapse.core.records import UserError

_LONGEST = 400  # characters of a message


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
    return f"{kind}: {text if len(text) <= _LONGEST else text[:_LONGEST] + ' ...'}"


def is_interrupt(error: BaseException) -> bool:
    """Returns whether it is Ctrl-C, which can come between any two operations, rather than raised by some code."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is None or dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] != "RAISE_VARARGS"
