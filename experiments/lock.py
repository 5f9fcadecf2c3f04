"""One process at a time in a folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fedjax_collapse.records import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


@contextlib.contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Keeps other processes out of the folder; the system lets go of it when this one ends, however it ends.

    Where files cannot be locked, as on some network file systems, nobody is kept out.

    Raises:
        UserError: another process is in it.
    """
    with (folder / ".lock").open("a") as file:
        try:
            if fcntl:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: another process runs this study; wait for it, or stop it") from None
        except OSError:
            pass
        yield
