"""The keys of a config: the records of the library that hold them, and the defaults of a config.

Each field of these records is a key, with the field's default, annotation and description. A dict with a ``name``
chooses a class or function; its other keys are the options.
"""

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_args

import optax
from flax.linen import Module

from fedjax_collapse import engine, measurements, methods
from fedjax_collapse.data import augment, partition, sources
from fedjax_collapse.engine.samplers import SAMPLERS
from fedjax_collapse.methods.base import Method
from fedjax_collapse.nn import networks
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.heads import orthogonal_head
from fedjax_collapse.optim import aggregation
from fedjax_collapse.optim.local_training import LocalTraining
from fedjax_collapse.optim.muon import muon
from fedjax_collapse.run.runs import Schedule
from fedjax_collapse.run.simulation import simulate
from fedjax_collapse.schema import discovery
from fedjax_collapse.schema.names import functions
from fedjax_collapse.schema.options import Count, Decay, Natural, OpenChoice, Seed, hints, in_words
from fedjax_collapse.schema.values import Option, described, is_record, written
from fedjax_collapse.training.algorithm import FedAvg

OPTIMIZERS = {name: getattr(optax, name) for name in ("sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi")}
OPTIMIZERS |= {"muon": muon}
SERVER_OPTIMIZERS = {  # the damped ones are from released code
    **{name: OPTIMIZERS[name] for name in ("sgd", "adagrad", "adam", "yogi")},
    **{f"damped_{name}": getattr(aggregation, f"damped_{name}") for name in ("momentum", "adagrad", "adam", "yogi")},
}
SOURCES, PARTITIONS, MEASUREMENTS = functions(sources), functions(partition), functions(measurements)
NETWORKS, METHODS = discovery.classes(networks, Module), discovery.classes(methods, Method)
_NO_ENTRIES: dict[str, Any] = {}
HEAD_INITS = {"random": None, "orthogonal": orthogonal_head}


class Cells(NamedTuple):
    """The cells of a study, and the published numbers to compare with.

    Args:
        seeds: seeds of the runs: one run for each setting, arm and seed.
        arms: name -> values of the config that this arm changes.
        settings: name -> values that this setting changes for all arms (data, partition, rounds, ...). An arm's values
            override them; ``arms`` of a setting override both.
        means: name -> tuple of settings: tables also have the mean over these settings, under that name.
        sweep: key -> values: each arm that has the key, such as "training.learning_rate", runs with each value.
        paper: the published table to compare with: source; values={setting: {arm: number}} or {arm: number}, and
            spreads likewise; columns={name: (setting, measured/MEASUREMENT/NUMBER)}, further names of values;
            comparable=True, or False and why; metric: accuracy, best_accuracy, last10_accuracy or validated_accuracy in
            percent, measured/MEASUREMENT/NUMBER, seconds_per_round, or rounds_to_target (with target=ARM).
        title: title of the report; by default "Study" and the name of the study's folder.
    """

    seeds: tuple = (0,)
    arms: dict = _NO_ENTRIES
    settings: dict = _NO_ENTRIES
    means: dict = _NO_ENTRIES
    sweep: dict = _NO_ENTRIES
    paper: dict = _NO_ENTRIES
    title: str = ""


class Clients(NamedTuple):
    """The clients, their methods and the head of their networks.

    Args:
        clients: number of clients.
        methods: name -> options, where name="my_module:MyClass" is a class of your own. Uploads pass through methods in
            this order; without methods, it is federated averaging.
        head: initial weights of the classifier; ``orthogonal`` is for a frozen one (training.freeze="head").
    """

    clients: Count = 10
    methods: dict = _NO_ENTRIES
    head: Annotated[str, OpenChoice(HEAD_INITS, "")] = "random"


class Data(NamedTuple):
    """The data of all settings.

    Args:
        source: the data set; its first argument follows a colon (``folder:PATH``), further keys are its options.
        folder: folder of data sets such as cifar10, and of relative paths; by default the current folder, for data sets
            also data and ~/data.
        validation_fraction: fraction of each class's training examples that no client gets and that validate the
            server's model, the same for all arms and seeds.
    """

    source: Annotated[str, OpenChoice(SOURCES)] = "digits"
    folder: str = ""
    validation_fraction: Decay = 0.0


class Partition(NamedTuple):
    """The partition.

    Args:
        name: how examples are divided among clients; further keys are its options.
        seed: seed of the partition; None is the seed of the run: every seed of a study has its own partition.
    """

    name: Annotated[str, OpenChoice(PARTITIONS)] = "dirichlet"
    seed: Seed | None = None


class OwnTests(NamedTuple):
    """Clients' own test rows.

    Args:
        name: each client's own test rows: ``shares`` of the common test set, a ``split`` of its own examples, or
            ``given`` by the source.
    """

    name: str = "shares"


class Network(NamedTuple):
    """The network.

    Args:
        name: the network; further keys are its options.
        weights: file of initial weights, in a format of ``load_pretrained``: safetensors, npz or torch.save; a
            classifier of other classes stays random.
        adapters: low-rank adapters of the network's layers; all else but the head is then frozen.
        task: ``self_supervised``, to learn from two augmented views of an example without labels, with the head
            ``siamese``; by default the task of the data.
    """

    name: Annotated[str, OpenChoice(NETWORKS)] = "small_cnn"
    weights: str = ""
    adapters: LoRA | None = None
    task: Annotated[str, ("", "self_supervised")] = ""


class Server(NamedTuple):
    """The server's step.

    Args:
        optimizer: the server's optimizer; further keys are its options. ``none`` takes the mean of the uploads.
        batch_norm: BatchNorm: ``average`` it like the rest of the network, leave it ``local`` to each client (FedBN),
            or ``recalibrate`` running statistics on the new model after every round.
    """

    optimizer: Annotated[str, OpenChoice(["none", *SERVER_OPTIMIZERS])] = "none"
    batch_norm: Annotated[str, ("average", "local", "recalibrate")] = "average"


class Engine(NamedTuple):
    """How clients and runs are laid out on devices.

    Args:
        layout: how clients are laid out on devices; ``timed`` measures layouts once and stores the fastest, ``loop`` is
            for debugging.
        clients_at_once: clients trained in parallel on each device; 0 chooses.
        devices: number of devices; 0 is all.
        runs: whether runs that differ only in numbers are trained together; ``auto`` takes the faster.
        storage: where examples and client states are stored; ``auto`` is the device if they fit, the disk with
            data.source=store:<folder>.
    """

    layout: Annotated[str, ("auto", "timed", "chunked", "vectorized", "sharded", "loop")] = "auto"
    clients_at_once: Natural = 0
    devices: Natural = 0
    runs: Annotated[str, ("auto", "together", "separate")] = "auto"
    storage: Annotated[str, engine.STORAGES] = "auto"


_SECTION = object()  # in the place of a record: sections by name
# Every key in the order of a config: fields of records, "..." for all further fields of one, and sections.
_PARTS = {
    "": (
        (Schedule, "rounds"), (Cells, "..."), (Clients, "clients"), (Schedule, "participation"),
        (_SECTION, "cohort data partition own_tests"), (Schedule, "finetuning"), (_SECTION, "network training"),
        (Clients, "methods"), (_SECTION, "server"), (Schedule, "privacy"), (FedAvg, "..."), (Clients, "..."),
        (Schedule, "..."), (_SECTION, "engine"),
    ),
    "cohort": ((engine.Participation, "..."),),
    "data": ((Data, "..."),),
    "partition": ((Partition, "name"), (partition.dirichlet, "alpha"), (Partition, "...")),
    "own_tests": ((OwnTests, "..."),),
    "network": ((Network, "..."),),
    "training": ((LocalTraining, "..."),),
    "server": ((Server, "optimizer"), (FedAvg, "optimized weighting"), (Server, "...")),
    "engine": ((Engine, "..."),),
}  # fmt: skip
_ADDED = {  # fields that are no keys of a config until it sets them
    engine.Participation: "fraction clock",
    LocalTraining: "steps phases optimizer task_loss clip_norm drop_last schedule freeze logged_epochs momentum_reset",
    FedAvg: "training methods server_optimizer",
}
_DEFAULTS = {  # of a config, where the record has another one, or none
    "rounds": 30,
    "cohort.sampler": "uniform",
    **dict.fromkeys(("cohort.dropout", "cohort.stragglers", "cohort.upload_loss"), 0.0),
    "partition.alpha": 0.1,
    "training.epochs": 5,
    "training.momentum": 0.9,
    "training.weight_decay": 1e-5,
    "training.augmentation": "none",
    "measurements": {},
}
_KINDS = {  # annotations of values in a config, if the record holds the chosen object
    "participation": hints(engine.Participation)["fraction"],
    "cohort.sampler": Annotated[str, OpenChoice(SAMPLERS)],
    "watch": Annotated[str, OpenChoice(("one", "all"), "(int, ...)")],
    "measurements": dict,
    "training.augmentation": Annotated[str, OpenChoice(augment.PRESETS)],
}
_NAMED = ("cohort.sampler", "server.optimizer")  # the key of the name; options are next to it


class Key(NamedTuple):
    """A key of a config."""

    path: str  # with dots
    default: Any
    kind: Any  # the annotation of its values
    meaning: str

    def option(self) -> Option:
        """Returns the key as ``--help`` and the reference show it."""
        return Option(self.path, written(self.default), in_words(self.kind), self.meaning)


@functools.cache
def keys() -> dict[str, Key]:
    """Returns every key by its path, in the order of a config."""
    return {key.path: key for key in _of_section("")}


def entries(config: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    """Yields every key that a config has, with its value."""
    for path, key in keys().items():
        *sections, name = path.split(".")
        section = functools.reduce(lambda of, part: of.get(part, {}), sections, config)
        if isinstance(section, Mapping) and name in section:
            yield key, section[name]


def fields_of(section: str) -> list[str]:
    """Returns the names of a section's keys."""
    return [path.split(".")[1] for path in keys() if path.startswith(f"{section}.")]


def _of_section(section: str) -> Iterator[Key]:
    for record, names in _PARTS[section]:
        for name in names.split():
            if record is _SECTION:
                yield from _of_section(name)
                continue
            for field in _further(record) if name == "..." else [name]:
                yield _key(f"{section}.{field}".lstrip("."), record, field)


def _further(record):
    """Returns the fields of a record that are keys and are not named in ``_PARTS``."""
    named = {name for parts in _PARTS.values() for of, names in parts if of is record for name in names.split()}
    return [field for field in hints(record) if field not in named | set(_ADDED.get(record, "").split())]


def _key(path, record, field):
    meaning = described(simulate if record is Schedule else record).get(field, "")
    kind = _KINDS.get(path, hints(record)[field])
    default = _DEFAULTS[path] if path in _DEFAULTS else inspect.signature(record).parameters[field].default
    if default is None and any(map(is_record, get_args(kind))):
        default, kind = {}, dict  # its options
    return Key(f"{path}.name" if path in _NAMED else path, default, kind, meaning)
