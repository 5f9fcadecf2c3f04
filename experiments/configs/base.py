"""Every config key with its default. A config file starts from here and changes values; a key that is not here is an
error.

The dicts with a ``name`` choose an object by module name (``experiments/config/names.py``); their other keys are its
arguments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict, config_dict


class Key(NamedTuple):
    """A key of a config.

    ``privacy`` is what the key means for a run whose method adds noise to the mean upload:

    * ``harmless``: no value lets clients' data reach the server in another way;
    * ``counted``: epsilon depends on it, or is of one of its values;
    * ``rejected``: with ``accepted``, the values that this does not name are an error of ``privacy/guarantee.py`` or of
      the algorithm; without, all but the default are. A key for which nothing is said is rejected.
    """

    default: Any | Callable[[], Any]  # or a function that makes a new one, of values that a config changes in place
    meaning: str  # with the unit; ``experiments/config/manual.py`` adds which values are valid
    privacy: str = "rejected"
    accepted: str = ""


KEYS = {  # sections with dots
    "rounds": Key(
        30,
        "rounds of a run; a study that is started again with more, in its --workdir, goes on to them, or says in one "
        "line why it would not equal a study that had them from its start",
        "counted",
    ),
    "seeds": Key((0,), "a run for each setting, arm and seed", "counted"),
    "arms": Key(dict, "name -> the values in which this arm differs from the rest of the config", "counted"),
    "settings": Key(
        dict,
        "name -> likewise, for all arms (data, partition, rounds, ...); the values of an arm override them, and what a "
        "setting has below arms for an arm of that name overrides both",
        "counted",
    ),
    "means": Key(
        dict, "name -> settings, as a tuple: tables also have the mean over these settings, under that name", "harmless"
    ),
    "sweep": Key(
        dict, 'key -> values: each arm that has the key, such as "training.learning_rate", is run with each', "counted"
    ),
    "paper": Key(
        dict,
        "the table that this study is compared with: source, values={setting: {arm: number}} or {arm: number}, "
        "spreads likewise, columns={name: (setting, measured/MEASUREMENT/NUMBER)} as further names of values, "
        "comparable=True, or False and why; metric: accuracy, best_accuracy, last10_accuracy or validated_accuracy in "
        "percent, or in their own units measured/MEASUREMENT/NUMBER, seconds_per_round, rounds_to_target (with "
        "target=ARM)",
        "harmless",
    ),
    "clients": Key(10, "number of clients", "counted"),
    "participation": Key(1.0, "fraction of the clients in a round, rounded down, at least one client", "counted"),
    "cohort.sampler.name": Key(
        "uniform",
        "how the clients of a round are drawn; further keys are its options",
        accepted="uniform, uniform_on_host and poisson, which are counted",
    ),
    "cohort.dropout": Key(
        0.0,
        "probability that a client of the round does not return",
        accepted="with the sampler poisson, where it does not lower epsilon",
    ),
    "cohort.stragglers": Key(0.0, "probability that a client takes only a share of its local steps", "harmless"),
    "cohort.straggler_share": Key(0.5, "the share of the local steps that a straggler takes", "harmless"),
    "cohort.upload_loss": Key(
        0.0,
        "probability that a client trains, but its upload does not arrive; clock=dict(step_seconds=0.5, ...) is "
        "virtual time, with a deadline of uploads",
        accepted="with the sampler poisson, where it does not lower epsilon; likewise a clock with a deadline",
    ),
    "data.source": Key(
        "digits", "the data set, after a colon with its first argument; further keys are its options", "harmless"
    ),
    "data.folder": Key(
        "",
        "the folder with the data of all settings: of data sets by name, such as cifar10, and that relative paths are "
        "below; by default the current folder, for data sets by name also data and ~/data",
        "harmless",
    ),
    "data.validation_fraction": Key(
        0.0,
        "the fraction of the training examples of each class, of any source, that no client gets: the server's model "
        "is evaluated on them, and tables have the test accuracy of the round that is best there; the same examples "
        "for all arms and seeds",
        accepted="0, as scores on examples that may be of clients are not covered",
    ),
    "partition.name": Key(
        "dirichlet", "how examples are divided among clients; further keys are its options", "harmless"
    ),
    "partition.alpha": Key(0.1, "concentration of the Dirichlet distribution; small is heterogeneous", "harmless"),
    "partition.seed": Key(
        lambda: config_dict.placeholder(int),
        "seed of the partition; None is the seed of the run, so that every seed of a study has another partition",
        "harmless",
    ),
    "own_tests.name": Key(
        "shares",
        "each client's own test rows: shares, a part of the common test set with its shares of classes, for models "
        "with private parts; split, a part of its own examples, of training and test data together, for all models; or "
        "given, by the source, as pfllib does",
        "harmless",
    ),
    "finetuning": Key(
        ConfigDict,
        "what each client trains before a test on its own rows, and then discards: epochs, part, learning_rate",
        "harmless",
    ),
    "network.name": Key(
        "small_cnn",
        'the network, or "my_module:MyClass"; further keys are its options, among them head (linear, etf, simplex, '
        'two_heads, shifted, or dict(name="etf", ...) with options) and lowering, of convolutions',
        accepted="without BatchNorm, or with server.batch_norm=local",
    ),
    "network.weights": Key(
        "",
        "file of initial weights: a ViT's from timm, Hugging Face, torchvision (safetensors) or the JAX codes (npz), "
        "or any network's from save_weights; a classifier of other classes stays random",
        "harmless",
    ),
    "network.adapters": Key(
        ConfigDict,
        "low-rank adapters of the network's layers; all else but the head is then frozen: rank, alpha, layers, "
        "rank_stabilized, dropout, one_scale, init",
        "harmless",
    ),
    "training.epochs": Key(
        5, "passes over the client's examples in a round; phases=(('head', 10), ('body', 1)) replaces it", "harmless"
    ),
    "training.batch_size": Key(32, "examples in a batch", "harmless"),
    "training.learning_rate": Key(
        0.01, "learning rate of the clients; schedule=dict(name='cosine') changes it over the rounds", "harmless"
    ),
    "training.momentum": Key(0.9, "momentum of SGD; 0 where optimizer=dict(name='adam', ...) replaces SGD", "harmless"),
    "training.weight_decay": Key(1e-5, "factor of the params that is added to the gradient", "harmless"),
    "training.augmentation": Key(
        "none", "augmentation of training images, by name, or a function of your own", "harmless"
    ),
    "methods": Key(
        ConfigDict,
        'name -> options, in which name="my_module:MyClass" may be the class; uploads pass through them in this order; '
        "none is federated averaging",
        accepted="methods that change local training or the uploads before the clip; dp_fedavg is counted",
    ),
    "server.optimizer.name": Key(
        "none", "optimizer of the server; further keys are its options; none takes the mean", "harmless"
    ),
    "server.optimized": Key(
        "params", "what the optimizer acts on: params, or all, with BatchNorm's statistics", "harmless"
    ),
    "server.weighting": Key(
        "default", "weights of the clients; by default what the methods say, else by size", accepted="expected"
    ),
    "server.batch_norm": Key(
        "average",
        "BatchNorm is averaged like the rest of the network, local to each client (FedBN), or recalibrate: running "
        "statistics are measured on the new model after every round",
        accepted="local, or any but recalibrate for a network without BatchNorm",
    ),
    "privacy": Key(
        ConfigDict,
        "what the privacy of a run with methods.dp_fedavg is accounted for: delta, population, accountant, neighbours; "
        "epsilon in place of the method's noise_multiplier, which is then computed before the start",
        "counted",
    ),
    "private": Key(
        "none", "the part of the network that every client keeps for itself, such as head or batch_norm", "harmless"
    ),
    "keep_trained": Key(
        False,
        "whether each client keeps its model at the end of its last round, which own tests score as stage trained",
        "harmless",
    ),
    "head": Key(
        "random",
        'initial weights of the classifier: random, or orthogonal, for a frozen one (training.freeze="head")',
        "harmless",
    ),
    "on_nan": Key(
        lambda: config_dict.placeholder(str),
        "what to do when a loss is not finite: end the run, which is the default, leave the client out, or continue, "
        "which is the default and the only choice with methods.dp_fedavg",
        accepted="continue: an upload that is not finite counts as 0, and gets the same noise",
    ),
    "evaluate_every": Key(1, "rounds from one evaluation on the test set to the next", "harmless"),
    "watch": Key(
        "one", 'whose local models are measured: one client of the round, all, or identities such as "0,3"', "harmless"
    ),
    "measurements": Key(
        ConfigDict,
        'name -> a function of fedjax_collapse/measurements, or "my_module:function" of a view; or None',
        "harmless",
    ),
    "measure_every": Key(
        1, "rounds from one measurement to the next, at least from one evaluation, and after the last", "harmless"
    ),
    "stop_at_accuracy": Key(
        0.0,
        "a run ends after the evaluation whose accuracy reaches it; 0 is never",
        accepted="for accuracy of the server's model on the common test set, which is taken as public",
    ),
    "checkpoint_every": Key(10, "rounds from one checkpoint to the next", "harmless"),
    "save_local": Key(
        "", "keep the models of watched clients before the server's step: last or all evaluated rounds", "harmless"
    ),
    "engine.layout": Key(
        "auto",
        "how clients are laid out on devices: timed measures layouts once and stores the fastest; loop debugs",
        accepted="all but loop, which stops at a client that is not finite",
    ),
    "engine.clients_at_once": Key(0, "clients trained in parallel on each device; 0 chooses", "harmless"),
    "engine.devices": Key(0, "number of devices; 0 is all", "harmless"),
    "engine.runs": Key(
        "auto",
        "whether runs that differ only in numbers are trained together or separate; auto takes the faster",
        "harmless",
    ),
    "engine.storage": Key(
        "auto",
        "where examples and client states are stored; auto: on the device if they fit, on disk with "
        "data.source=store:<folder>",
        "harmless",
    ),
}


class StudyConfig(ConfigDict):
    """A config in which names may have dots, as those of settings (alpha 0.1) and the keys of a sweep."""

    def __init__(self, values: Any = None, type_safe: bool = True, convert_dict: bool = True) -> None:
        super().__init__(values, type_safe, convert_dict, allow_dotted_keys=True)

    def __setitem__(self, key: str, value: Any) -> None:
        is_dict = isinstance(value, dict)
        super().__setitem__(key, ConfigDict(value, allow_dotted_keys=True) if is_dict else value)


def get_config(arg: str = "") -> ConfigDict:
    del arg
    values: dict[str, Any] = {}
    for path, key in KEYS.items():
        *sections, name = path.split(".")
        section = values
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = key.default() if callable(key.default) else key.default
    return StudyConfig(values)
