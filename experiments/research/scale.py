"""What a round costs with millions of clients on hundreds of chips: a model on paper, and what it says here.

    fedjax-collapse scale [--efficiency=0.3] [--target=gpu:h100]
    fedjax-collapse scale --measure [--devices=8] [--cohorts=16,32,64,128]

Prints, for federations of a million to a hundred million clients, the seconds of a round of a small transformer, what
sets them, and what is read and stored for it. The seconds are computed, not measured:

    client-step    the larger of (20 P + 16 B T V) / bandwidth and 6 M B T / operations per second
    round          ceil(cohort / chips) * steps * client-step / efficiency + 8 P / exchange + launch

P are the params: a step reads weights twice, writes and reads their gradient, and writes the new weights. B T V are
the logits of a batch, which it moves four times; M are the multiplications of a token. A ring of chips moves the 4 P
bytes of the mean upload twice. ``--efficiency`` is the share of the bound that a chip reaches, an assumption. Both
kinds of chips are as their vendors describe them. With ``--target``, the step is compiled for a chip, without having
it, and the compiler's estimate is printed: cycles on a TPU, on a GPU the bytes that the program moves.

With ``--measure``, runs rounds of a small network on simulated devices of this machine with several sizes of cohort,
fits the two constants of ``seconds = launch + ceil(cohort / devices) * client``, and prints how far each size is from
the model. Beside it stand the bytes that the devices exchange in a round, also relative to those of the model's
weights: about one, which is the mean upload. Exit status: 0, or 2 for invalid input (a one-line message).
"""

import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from experiments.benchmarks.arguments import at_least, share
from experiments.benchmarks.compiling.topologies import CHIPS, Chip
from experiments.parser import Parser, print_error
from experiments.waiting import wait
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.tables import text_table
from fedjax_collapse.results.writing import markdown

_MANY = at_least(1, "a number")
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Step(NamedTuple):
    """A local step of one client."""

    params: int
    products: int  # multiplications of a token, forwards
    tokens: int  # of a batch
    outputs: int  # logits of a token

    def seconds(self, chip: Chip) -> float:
        """Returns the least seconds that the chip takes."""
        moved = 20 * self.params + 16 * self.tokens * self.outputs
        return max(moved / chip.bandwidth, 6 * self.products * self.tokens / chip.peak)

    def bound(self, chip: Chip) -> str:
        """Returns what sets these seconds."""
        return "products" if self.seconds(chip) * chip.peak <= 6 * self.products * self.tokens else "memory"


class Place(NamedTuple):
    """A number of chips of one kind."""

    chip: str
    count: int
    exchange: float  # bytes per second, of an all-reduce over all of them


class Case(NamedTuple):
    """A federation of texts."""

    clients: int
    cohort: int


TRANSFORMER = Step(params=1_962_912, products=1_970_000, tokens=16 * 20, outputs=10_004)  # pfl-research's, batch of 16
STEPS = 4  # of a client in a round
ROW, ROWS = 42, 44  # bytes of a sentence of 21 int16, and the mean number of sentences of a client in a round
SENTENCES = 43  # that a client has on disk, in the mean
LAUNCH = 1e-3  # seconds between rounds
PLACES = (Place("h100", 8, 450e9), Place("v5e", 256, 160e9))
CASES = (Case(1_000_000, 1_000), Case(10_000_000, 5_000), Case(100_000_000, 10_000), Case(100_000_000, 50_000))


def round_seconds(step: Step, place: Place, cohort: int, efficiency: float, steps: int = STEPS) -> dict[str, float]:
    """Returns the parts of a round's seconds: of clients, of the exchange, and of its launch."""
    rows = math.ceil(cohort / place.count)
    clients = rows * steps * step.seconds(CHIPS[place.chip]) / efficiency
    return {"clients": clients, "exchange": 8 * step.params / place.exchange, "launch": LAUNCH}


def rows(efficiency: float) -> Iterator[dict[str, Any]]:
    """Yields a row for each federation and place."""
    for (clients, cohort), place in ((case, place) for case in CASES for place in PLACES):
        seconds = round_seconds(TRANSFORMER, place, cohort, efficiency)
        largest = max(seconds, key=seconds.get)
        yield {
            "clients": f"{clients:,}",
            "cohort": f"{cohort:,}",
            "chips": f"{place.count} {place.chip}",
            "ms a round": f"{float(f'{1e3 * sum(seconds.values()):.3g}'):,g}",
            "set by": f"{largest}, {TRANSFORMER.bound(CHIPS[place.chip])}" if largest == "clients" else largest,
            "2,000 rounds": _duration(2000 * sum(seconds.values())),
            "read a round": _bytes(cohort * ROWS * ROW),
            "sent to a chip": _bytes(math.ceil(cohort / place.count) * ROWS * ROW),
            "on disk": _bytes(clients * SENTENCES * ROW),
            "index": _bytes(8 * clients),
            "states of SCAFFOLD": _bytes(4 * TRANSFORMER.params * touched(clients, cohort, 2000)),
        }


def touched(clients: int, cohort: int, rounds: int) -> float:
    """Returns how many distinct clients have been in a cohort after so many rounds, in expectation."""
    return -clients * math.expm1(-cohort * rounds / clients)


def estimate(target: str) -> dict[str, Any]:
    """Returns what the compiler of a chip estimates for the transformer's step.

    Raises:
        UserError: the target is unknown, or its compiler is not installed.
    """
    from experiments.benchmarks.compiling import costs, topologies

    topology = topologies.find(target)
    cost = costs.compile_program(_transformer_step(topology.devices[0]), topology.chip)
    return {
        "target": target,
        "us per client-step": f"{1e6 * cost.seconds:.3g}",
        "bound divided by it": f"{TRANSFORMER.seconds(topology.chip) / cost.seconds:.2f}",
        "bytes moved": _bytes(cost.bytes_moved),
    }


def _transformer_step(device):
    """Lowers a step of SGD without momentum on a batch of sentences."""
    import jax.numpy as jnp

    from fedjax_collapse import Model, next_word, nn
    from fedjax_collapse.core.records import Batch

    words, length = TRANSFORMER.outputs - 4, 20
    model = Model(nn.PflTransformer(TRANSFORMER.outputs), (length,), task=next_word(words), input_dtype="int32")

    def step(variables, batch):
        def loss(params):
            return model.task.loss(model.apply(variables._replace(params=params), batch, train=True)[0], batch)

        gradient = jax.grad(loss)(variables.params)
        return variables._replace(params=jax.tree.map(lambda w, g: w - 0.3 * g, variables.params, gradient))

    tokens = jax.ShapeDtypeStruct((TRANSFORMER.tokens,), jnp.int32)
    inputs = jax.ShapeDtypeStruct((TRANSFORMER.tokens // length, length), jnp.int32)
    arguments = model.variable_shapes(), Batch(inputs, tokens, jax.ShapeDtypeStruct(tokens.shape, bool))
    placed = SingleDeviceSharding(device)
    arguments = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), arguments)
    return jax.jit(step, donate_argnums=0).lower(*arguments)


class Fit(NamedTuple):
    """The constants of the model, fitted to rounds that were timed."""

    launch: float  # seconds
    client: float  # seconds of a client, of which each device has one after another
    errors: np.ndarray  # of each timing, relative to it


def fit(cohorts: Sequence[int], seconds: Sequence[float], devices: int) -> Fit:
    """Returns the constants with the least relative squared error."""
    rows, seconds = np.ceil(np.array(cohorts) / devices), np.array(seconds)
    design = np.stack([np.ones(len(rows)), rows], axis=1) / seconds[:, None]
    launch, client = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)[0]
    return Fit(launch, client, (launch + client * rows) / seconds - 1)


class Timed(NamedTuple):
    """Rounds of one size of cohort on this machine."""

    cohort: int
    seconds: float  # of a round, the median
    exchanged: int  # bytes of the results of all exchanges in a round
    upload: int  # bytes of the model


def measure(devices: int, cohort: int, repetitions: int = 7) -> Timed:
    """Times rounds of so many clients, two batches each, on simulated devices, each with one client at a time."""
    from experiments.benchmarks.systems import engine_rounds
    from experiments.benchmarks.tasks import Data
    from fedjax_collapse import FedAvg, LocalTraining, Model, engine, nn

    count = cohort * 20
    rng = np.random.default_rng(0)
    data = Data(rng.integers(0, 255, (count, 16, 16, 1)).astype(np.uint8), np.arange(count) % 10, 128.0, 64.0)
    parts, model = np.split(np.arange(count), cohort), Model(nn.MLP(10, hidden=(256, 256)), (16, 16, 1))
    client_map, algorithm = engine_rounds.layout(devices), FedAvg(LocalTraining(batch_size=10))
    run, compiled = engine_rounds.prepare(data, parts, algorithm, model, client_map)
    timed = engine_rounds.rounds(run, compiled)
    next(timed)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        next(timed)
        seconds.append(time.perf_counter() - start)
    lowered = engine.lower(compiled, run.algorithm, engine.Assignment(run.federation.ownership), run.federation.train)
    upload = engine.memory.size_in_bytes(model.variable_shapes().params)
    return Timed(cohort, float(np.median(seconds)), exchanged_bytes(lowered.compile().as_text()), upload)


_RESULT = re.compile(r"= (.*?) all-reduce(?:-start)?\(")
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


def exchanged_bytes(program: str) -> int:
    """Returns the bytes of the results of all all-reduces in optimised HLO, each counted once."""
    arrays = (
        array for line in program.splitlines() for result in _RESULT.findall(line) for array in _ARRAY.findall(result)
    )
    return sum(int(bits) // 8 * math.prod(int(side) for side in shape.split(",") if side) for bits, shape in arrays)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    asked = command_line().parse_args(argv)
    try:
        if asked.target:
            with wait(f"compiling for {asked.target}"):
                estimated = [estimate(asked.target)]
        _print(rows(asked.efficiency))
        if asked.target:
            print()
            _print(estimated)
        if asked.measure:
            _print_measured(asked)
    except UserError as error:
        return print_error(error)
    return 0


def _print_measured(asked):
    """Times rounds here and prints them next to the formula."""
    jax.config.update("jax_num_cpu_devices", asked.devices)
    with wait("timing rounds") as advance:
        timed = []
        for cohort in asked.cohorts:
            timed.append(measure(asked.devices, cohort))
            advance()
    fitted = fit([each.cohort for each in timed], [each.seconds for each in timed], asked.devices)
    constants = f"launch {1e3 * fitted.launch:.2f} ms, client {1e3 * fitted.client:.3f} ms"
    print(f"\n{asked.devices} simulated devices: {constants}\n")
    _print(
        {
            "cohort": f"{each.cohort:,}",
            "ms a round": f"{1e3 * each.seconds:.1f}",
            "error of the formula": f"{100 * error:+.1f} %",
            "exchanged": f"{each.exchanged:,} B",
            "relative to the weights": f"{each.exchanged / each.upload:.4f}",
        }
        for each, error in zip(timed, fitted.errors, strict=True)
    )


def command_line() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--efficiency", type=share, default=0.3, help="of the bound that a chip reaches")
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument("--target", help="compiles the step for it, such as tpu:v5e:2x2 or gpu:h100")
    targets.add_argument("--measure", action="store_true", help="also runs rounds on simulated devices")
    parser.add_argument("--devices", type=_MANY, default=8, help="simulated")
    parser.add_argument("--cohorts", type=_numbers, default=[16, 32, 64, 128], help="sizes of cohorts that are timed")
    return parser


def _numbers(text):
    return [_MANY(word) for word in text.split(",")]


def _print(rows):
    """Prints dicts with the same keys as a table."""
    rows = list(rows)
    print(markdown(text_table("", list(rows[0]), [list(row.values()) for row in rows])), end="")


def _bytes(count):
    power = min(int(math.log10(max(count, 1))) // 3, len(_UNITS) - 1)
    return f"{count / 1000**power:.3g} {_UNITS[power]}"


def _duration(seconds):
    return f"{seconds / 60:.2g} min" if seconds >= 60 else f"{seconds:.2g} s"
