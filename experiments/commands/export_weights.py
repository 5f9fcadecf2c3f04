"""Writes the weights of a run to a file that other libraries read:
fedjax-collapse export RUN [--format=safetensors,torch] [--client=K] [--round=R] [--out=FILE]

RUN is a run's folder, such as STUDY/fedavg/seed0. The weights are those of the model that is evaluated, after the last
checkpoint; with --client those that the client held after its own training, which the run has kept if its config says
``save_local``. ``safetensors`` has the arrays by their paths. ``torch`` is a state dict of the same network in PyTorch,
which ``load_run(RUN).to_torch()`` returns. Exit status: 0, or 2 after a one-line message about wrong input.
"""

from pathlib import Path

from experiments.parser import Parser, reports_errors
from fedjax_collapse import load_run, save_weights
from fedjax_collapse.config.loading import LoadedRun
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError, Variables

FORMATS = {"safetensors": ".safetensors", "torch": ".pt"}


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER", help="of a run, such as STUDY/fedavg/seed0")
    parser.add_argument("--format", choices=FORMATS, default="safetensors", help="by default safetensors")
    parser.add_argument("--client", type=int, metavar="K", help="the client whose local model is written")
    parser.add_argument("--round", type=int, metavar="R", help="of the local model; by default the last that was kept")
    parser.add_argument("--out", type=Path, metavar="FILE", help="by default model.safetensors or model.pt in RUN")
    parser.add_argument("--trust", action="store_true", help="import custom code that the study's config names")
    return parser


@reports_errors
def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    options = command_line().parse_args(arguments)
    run = load_run(options.run, trust=options.trust)
    variables = _chosen(run, options.client, options.round)
    out = options.out or options.run / f"model{FORMATS[options.format]}"
    write(run, variables, options.format, out)
    print(f"wrote {out}")
    return 0


def _chosen(run: LoadedRun, client: int | None, round: int | None) -> Variables:
    """Returns the evaluated model, or a client's local one."""
    if client is None:
        if round is not None:
            raise UserError("--round is of a local model: give --client too")
        return run.variables
    models = run.local[max(run.local, default=0) if round is None else round]
    if client not in models:
        raise UserError(f"client {client} has no local model there, expected one of {', '.join(map(str, models))}")
    return models[client]


def write(run: LoadedRun, variables: Variables, form: str, file: Path) -> None:
    """Writes the variables in one of ``FORMATS``."""
    if form == "safetensors":
        save_weights(file, variables)
        return
    network = run.to_torch(variables)
    import torch  # which ``to_torch`` needs too, and says so

    try:
        with files.whole(file) as out:
            torch.save(network.state_dict(), out)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{file}: cannot be written ({error})") from error
