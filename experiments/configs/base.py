"""Every config key with its default. A config file starts from here and changes values; a key that is not here is an
error.

The dicts with a ``name`` choose an object by module name (``experiments/config/names.py``); their other keys are its
arguments.
"""

from typing import Any

from ml_collections import ConfigDict, config_dict


class StudyConfig(ConfigDict):
    """A config in which names may have dots, as those of settings (alpha 0.1) and the keys of a sweep."""

    def __init__(self, values: Any = None, type_safe: bool = True, convert_dict: bool = True) -> None:
        super().__init__(values, type_safe, convert_dict, allow_dotted_keys=True)

    def __setitem__(self, key: str, value: Any) -> None:
        is_dict = isinstance(value, dict)
        super().__setitem__(key, ConfigDict(value, allow_dotted_keys=True) if is_dict else value)


def get_config(arg: str = "") -> ConfigDict:
    del arg
    return StudyConfig(
        dict(
            rounds=30,
            seeds=(0,),  # a run per setting, arm and seed
            arms={},  # name -> the values in which this arm differs from the rest of the config
            # name -> likewise, for all arms (data, partition, rounds, ...); an arm's values go over them, and over
            # those what a setting has below arms for an arm of that name
            settings={},
            means={},  # name -> settings: the tables also have the mean over these settings, under that name
            sweep={},  # key -> values: each arm that has the key, such as "training.learning_rate", is run with each
            # the table that this study is to be compared with: source="...", values={setting: {arm: percent}} (or
            # {arm: percent}), comparable=True, or False and why="..."; metric: accuracy, best_ or last10_accuracy, or
            # in its own unit measured/<measurement>/<number>, seconds_per_round, rounds_to_target (with target=ARM)
            paper={},
            clients=10,
            participation=1.0,  # fraction of the clients in a round
            # sampler: uniform, by_size, or available with its probability and period; dropout: probability of
            # not coming back; stragglers: probability of taking only the share straggler_share of the local steps;
            # upload_loss: of training in vain; clock=dict(step_seconds=0.5, ...): virtual time, and a deadline
            cohort=dict(
                sampler=dict(name="uniform"), dropout=0.0, stragglers=0.0, straggler_share=0.5, upload_loss=0.0
            ),
            data=dict(source="digits"),
            # seed: of the draw; none is the run's own seed, so that every seed of a study sees another partition
            partition=dict(name="dirichlet", alpha=0.1, seed=config_dict.placeholder(int)),
            # each client's own test: shares, the part of the common test set with its shares of classes, for models
            # with private parts; or split, a part of its own examples, of training and test data together, for all
            own_tests=dict(name="shares"),
            finetuning=ConfigDict(),  # with a split: epochs, part, learning_rate of what is trained before such a test
            # further keys: those of the class; lowering: of convolutions, auto, timed, rules (docs/accelerators.md);
            # head: linear, etf, simplex, or dict(name="etf", ...) with its options
            network=dict(name="small_cnn"),
            # augmentation: a preset of fedjax_collapse/data/augment.py, such as feddecorr_cifar10
            # further keys: those of fedjax_collapse/training/local_training.py; instead of SGD
            # optimizer=dict(name="adam", ...); phases=(("head", 10), ("body", 1)) instead of epochs; over rounds
            # schedule=dict(name="cosine") or dict(name="decay", factor=0.998)
            training=dict(
                epochs=5, batch_size=32, learning_rate=0.01, momentum=0.9, weight_decay=1e-5, augmentation="none"
            ),
            # module name -> arguments, in which name="my_module:MyClass" may be the class; uploads go through them in
            # this order
            methods=ConfigDict(),
            # optimizer: sgd, damped_momentum, adagrad, adam, yogi, ... with its arguments; optimized: what it acts on;
            # weighting: of the clients, by default what the methods say, else by their size; batch_norm: average, like
            # the rest of the network; local, each client keeps its own (FedBN); recalibrate, running statistics are
            # not averaged, but measured on the new model after every round
            server=dict(optimizer=dict(name="none"), optimized="params", weighting="default", batch_norm="average"),
            private="none",  # the part of the network that every client keeps for itself, such as head or batch_norm
            head="random",  # the classifier's initial weights; or orthogonal, for a frozen one (training.freeze="head")
            on_nan="stop",  # where a loss is not finite; or skip_client: leave the client out, or continue
            evaluate_every=1,
            watch="one",  # whose local models are measured: one client of the cohort, all of it, or identities: "0,3"
            # name -> a function of fedjax_collapse/analysis/measurements.py, or "my_module:function" of a view
            measurements=ConfigDict(),
            measure_every=1,  # rounds from one of these to the next, at least from one evaluation; and after the last
            stop_at_accuracy=0.0,  # a run ends after the evaluation whose accuracy (0 to 1) reaches it; 0 is never
            checkpoint_every=10,
            # layout: auto, timed (once, then cached), chunked, vectorized, sharded, loop (debug)
            # clients_at_once, on each device: 0 is auto; devices: 0 is all
            # runs that differ in numbers alone are trained: together, separate, or by auto as is faster
            # storage of examples and client states: device, host, or by auto where they fit
            engine=dict(layout="auto", clients_at_once=0, devices=0, runs="auto", storage="auto"),
        )
    )
