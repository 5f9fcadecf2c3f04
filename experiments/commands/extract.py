"""Writes the features of a config's data, by its network, to a file that the data source ``features`` reads.

    fedjax-collapse extract --config=CONFIG[:arg] [--config.key=value] [--setting=SETTING] [--arm=ARM] [--seed=SEED]
        [--virtual=COUNT [--virtual_others=COUNT [--enlarged=largest]]] --out=FILE.npz

Every training and test example is run once, without augmentation, in evaluation mode. The weights are those of
``network.weights``, else the initial ones of a run with this seed; ``fedjax-collapse export`` writes those of a
finished run to such a file. The npz file also has labels, class names, domains and owners, and ``provenance`` as JSON:
network, data, normalisation, the SHA-256 of weights and data, and versions. With --virtual the owners are the clients
of the config's partition, and virtual features are added as in GGEUR, until a client has COUNT examples of each class
that it holds. Exit status: 0, or 2 after a one-line message about wrong input.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.machine import versions
from experiments.parser import Parser, reports_errors
from experiments.study import parsing
from experiments.study.provenance import PACKAGES
from experiments.study.resolving import resolve_one
from experiments.waiting import Advance, wait
from fedjax_collapse import FedAvg, engine
from fedjax_collapse.config import build
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.core.records import Examples, UserError, Variables
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.target import Target
from fedjax_collapse.data import Federation
from fedjax_collapse.data.sources.virtual_features import ENLARGED, draw_virtual_features
from fedjax_collapse.nn.model import Model
from fedjax_collapse.run.evaluation import evaluate

_BATCH = 512  # examples


@reports_errors
def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    config, seed, out, virtual = parse(arguments)
    arrays = extract(config, seed, virtual)
    write_npz(out, arrays)
    (count, width), test_count = arrays["features"].shape, len(arrays["test_features"])
    print(f"wrote {out}: {width} features of {count} training and {test_count} test examples")
    return 0


def parse(arguments: list[str]) -> tuple[dict[str, Any], int, Path, dict[str, Any]]:
    """Returns the config (of the chosen setting and arm), the seed, the file to write, and how features are drawn.

    Raises:
        UserError: the command line is invalid, or the file is in no folder.
    """
    options, own = parsing.parsed(arguments, command_line(), _own_options())
    if own.out.is_dir() or not own.out.absolute().parent.is_dir():
        raise UserError(f"--out={own.out}: it is a folder, or in none; expected a file in a folder that is there")
    config, seed = resolve_one(options)
    if own.virtual < 0 or (own.virtual and config["own_tests"]["name"] == "split"):
        tests = config["own_tests"]["name"]
        raise UserError(f"--virtual={own.virtual} with own_tests {tests}: expected a number of examples, and shares")
    if own.virtual_others < 0 or (own.virtual_others and not own.virtual):
        raise UserError(f"--virtual_others={own.virtual_others}: expected a number of examples, and --virtual")
    virtual = dict(count=own.virtual, others=own.virtual_others, enlarged=own.enlarged)
    return config, seed, own.out, virtual if own.virtual else {}


def command_line() -> Parser:
    """Returns the parser of all options, most of which the launcher's own parser reads."""
    return parsing.command_line(__doc__, [_own_options()], only=("arm", "setting", "seed"))


def _own_options():
    parser = Parser(add_help=False)
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to write, such as features.npz")
    parser.add_argument("--virtual", type=int, metavar="COUNT", default=0, help="examples of a class at a client")
    others = "further ones around the mean of each other client"
    parser.add_argument("--virtual_others", type=int, metavar="COUNT", default=0, help=others)
    parser.add_argument("--enlarged", choices=ENLARGED, default="none", help="eigenvalues that are enlarged for these")
    return parser


def extract(config: Mapping[str, Any], seed: int, virtual: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Returns the arrays of the file.

    Args:
        config: all values of an arm in a setting.
        seed: of the initial weights, the partition and the virtual features.
        virtual: arguments of ``draw_virtual_features``; none without virtual features and partition.

    Raises:
        UserError: data or network are invalid, or features are not finite.
    """
    if fraction := config["data"].get("validation_fraction", 0.0):
        expected = "expected 0 here, and the fraction in the config that reads it"
        raise UserError(f"data.validation_fraction {fraction:g}: the file has all training examples; {expected}")
    with wait(f"reading {config['data']['source']}"):
        source = build.data_source(config["data"])
        federation = Federation.from_source(source, [np.arange(len(source.labels))], storage="host")
        model = build.model(config, federation)
        FedAvg().check(model)
    model = model.on(Target.of(engine.available_devices()[0]))
    variables = model.init(jax.random.split(jax.random.key(seed))[0])  # as in a run
    parts = {"": federation.train, "test_": federation.test}
    batches = sum(-(-len(part.labels) // _BATCH) for part in parts.values())
    arrays = {"provenance": np.array(json.dumps(_provenance(config, seed, federation, variables), default=str))}
    with wait(f"running {config['network']['name']}", batches) as advance:
        for prefix, examples in parts.items():
            arrays[f"{prefix}features"] = features_of(model, variables, examples, advance)
            arrays[f"{prefix}labels"] = examples.labels
    optional = ("class_names", "domains", "test_domains", "domain_names", "owners", "test_owners", "client_names")
    given = {name: getattr(source, name) for name in optional}
    arrays |= {name: np.asarray(value) for name, value in given.items() if value is not None and len(value)}
    return _with_virtual(arrays, config, seed, virtual) if virtual else arrays


def _with_virtual(arrays, config, seed, virtual):
    """Returns the arrays with the clients' rows in place of the training part, followed by virtual features."""
    own = build.federations(config, [seed])[seed].owned_rows()
    rows, owners = np.concatenate(own), np.repeat(np.arange(len(own)), list(map(len, own)))
    features, labels = arrays["features"][rows], arrays["labels"][rows]
    with wait("drawing virtual features"):
        drawn = draw_virtual_features(features, labels, owners, seed=seed, **virtual)
    of_train = {name: arrays[name][rows] for name in ("labels", "domains") if name in arrays} | {"owners": owners}
    of_train = {name: np.concatenate([values, values[drawn.rows]]) for name, values in of_train.items()}
    made = json.loads(str(arrays["provenance"])) | {"virtual": virtual}
    arrays = {name: values for name, values in arrays.items() if name not in ("test_owners", "client_names")}
    features = np.concatenate([features, drawn.features])
    return arrays | of_train | {"features": features, "provenance": np.array(json.dumps(made))}


def features_of(model: Model, variables: Variables, examples: Examples, advance: Advance) -> np.ndarray:
    """Returns the features [examples, d] in float32, computed in batches of one size; ``advance`` counts them."""
    count, parts = len(examples.labels), []
    for first in range(0, count, _BATCH):
        rows = np.minimum(np.arange(first, first + _BATCH), count - 1)
        batch = examples._replace(inputs=examples.inputs[rows], labels=np.asarray(examples.labels)[rows])
        features = np.asarray(evaluate(model, variables, batch, _BATCH).features, np.float32)
        if not np.isfinite(features).all():
            raise UserError(f"network: features of examples {first} to {first + _BATCH} are not finite")
        parts.append(features[: count - first])
        advance()
    return np.concatenate(parts)


def _provenance(config, seed, federation, variables):
    examples = federation.train
    return {
        "network": config["network"],
        "head": config["head"],
        "seed": seed,
        "weights_sha256": digest(variables),
        "data": config["data"],
        "data_sha256": federation.hashes()["data"],
        "mean": None if examples.mean is None else examples.mean.tolist(),
        "std": None if examples.std is None else examples.std.tolist(),
        "packages": versions(PACKAGES),
    }
