"""Whether a start goes on with runs that its folder holds, and what it says of that."""

from collections.abc import Sequence
from pathlib import Path

from experiments.reporting.reading import layouts_of, read_starts
from experiments.runs import Name, run_folder
from fedjax_collapse.records import UserError
from fedjax_collapse.simulation import rounds_kept

CHOICES = ("auto", "must", "never")


def check_resume(choice: str, workdir: Path, names: Sequence[Name]) -> None:
    """Raises UserError if the folder's runs are not as expected: by ``must`` each is started, by ``never`` none is."""
    started = [name for name in names if run_folder(workdir, name).is_dir()]
    missing = [name for name in names if name not in started]
    if choice == "must" and missing:
        raise UserError(
            f"--resume=must: {workdir} has nothing of {_listed(missing)} to go on from; "
            "give the folder of a study that was started, or --resume=auto"
        )
    if choice == "never" and started:
        raise UserError(
            f"--resume=never: {workdir} holds {_listed(started)}, started before; "
            "choose another --workdir, or --resume=auto"
        )


def changed_layouts(workdir: Path, names: Sequence[Name]) -> list[str]:
    """A sentence for each cell with a run that goes on in another layout than an earlier start had."""
    starts = read_starts(workdir)
    earlier, now = layouts_of(starts[:-1]), layouts_of(starts[-1:])
    going_on = {name[0] for name in names if _is_going_on(run_folder(workdir, name))}
    return [
        f"{cell}: goes on with {now[cell][0]}, started with {'; '.join(others)}: rounding may differ from there on"
        for cell in now
        if cell in going_on and (others := [layout for layout in earlier.get(cell, ()) if layout not in now[cell]])
    ]


def _is_going_on(folder):
    return rounds_kept(folder) != (0,) and not (folder / "summary.json").exists()


def _listed(names):
    """At most three of them."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{cell} seed {seed}" for cell, seed in names[:3]) + more
