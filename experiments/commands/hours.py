"""Estimates the hours that published studies take on one device: fedjax-collapse hours feddecorr,fedmr/table1

    fedjax-collapse hours feddecorr,fedmr,feduv
    fedjax-collapse hours feddecorr/table1 --rates=mobilenet_v2=11100

Prints a row for a local step of each network and data set of the studies (``:full``), with the samples per second that
were measured on one NVIDIA H100, or follow from a measured network of the same kind by the operations of both, and then
one for each study. ``--rates`` replaces measured rates by those of another device: samples per second of a network on
images of 32x32x3. No data are read, and nothing is trained (``experiments/benchmarks/hours.py``).
"""

import argparse
import itertools
from collections.abc import Sequence

from experiments.benchmarks.arguments import words
from experiments.benchmarks.tables import markdown
from experiments.parser import Parser, print_result
from fedjax_collapse.schema.names import check_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and returns the exit status: 0, or 2 after a one-line message about wrong input."""
    asked = command_line().parse_args(arguments)
    return print_result(lambda: _tables(asked))


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("studies", help="configs, or folders of them, such as feddecorr/table1,feduv")
    of_networks = "samples/s of networks on images of 32x32x3, in place of those of an H100"
    parser.add_argument("--rates", type=_rates, default={}, metavar="NETWORK=NUMBER,...", help=of_networks)
    return parser


def _tables(asked):
    from experiments.benchmarks import hours

    for name in asked.rates:
        check_name("network in --rates", name, [*dict(hours.RATES), *hours.LIKE])
    rates = tuple((dict(hours.RATES) | asked.rates).items())
    studies = hours.studies(words(asked.studies))
    steps = {name: hours.by_step(study) for name, study in studies.items()}
    rows = [["network", "images", "classes", "batch", "samples/s", "by"]]
    seconds = {}
    for step in dict.fromkeys(itertools.chain(*steps.values())):
        rate, like = hours.samples_per_second(step, rates)
        seconds[step] = step.batch_size / rate
        shape = "x".join(map(str, step.shape))
        rows.append([step.title, shape, step.classes, step.batch_size, f"{float(f'{rate:.3g}'):,.0f}", like])
    of_studies = [["config", "runs", "million client-steps", "hours"]]
    for name, study in studies.items():
        total = sum(steps[name][step] * seconds[step] for step in steps[name]) / 3600
        client_steps = sum(steps[name].values()) / 1e6
        of_studies.append([f"{name}:full", len(study.runs), f"{client_steps:,.1f}", f"{float(f'{total:.2g}'):,g}"])
    return f"{markdown(rows)}\n\n{markdown(of_studies)}"


def _rates(text):
    rates = {}
    for word in text.split(","):
        name, _, number = word.partition("=")
        try:
            rates[name] = float(number)
        except ValueError:
            rates[name] = 0.0
        if not 0 < rates[name] < float("inf"):
            raise argparse.ArgumentTypeError(f"{word!r}: expected NETWORK=NUMBER, such as resnet18=18900")
    return rates
