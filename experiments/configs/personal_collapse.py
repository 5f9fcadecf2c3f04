"""Do personal models collapse, and does decorrelation help the clients that do worst?

    python experiments/launch.py --config=experiments/configs/personal_collapse.py:offline --workdir=runs/personal

``experiments/notebooks/rank_and_accuracy.ipynb`` shows the results, with base ``local``. Twenty clients, Dirichlet 0.1,
each tested on a quarter of its own examples; four dense layers, 20 rounds of five epochs; every method alone, and DeCov
beside those that leave its term in the loss of the personal model. Effective rank and R are of the models that the
clients use, on the whole test set, after the last round. After the colon: ``offline``, the default, is both data sets,
``digits`` and ``mnist5k`` (needs the extra ``mnist5k``) are one of them, and ``smoke`` is two rounds of four arms.
Small data: not comparable with published tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base

METHODS = (
    "fedper", "fedrep", "lg_fedavg", "fedbabu", "fedrod", "feddbe", "ditto", "apfl", "pfedme", "per_fedavg",
    "fedproto", "fedala", "fedamp", "fedpac", "fedfomo",
)  # fmt: skip
WITH_DECOV = ("fedper", "fedrod", "feddbe", "ditto", "fedproto", "fedala")
HEADS = dict(fedrod="two_heads", feddbe="shifted")
DECOV = dict(decov=dict(strength=0.1))
DATA = {name: dict(data=dict(source=name)) for name in ("digits", "mnist5k")}


@base.variants("offline", *DATA, "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.clients, config.rounds = (0, 1, 2), 20, 20
    config.evaluate_every = config.checkpoint_every = config.rounds
    config.own_tests, config.finetuning = dict(name="split"), dict(epochs=5)
    config.network = dict(name="mlp", hidden=(128,) * 4)
    config.training.update(dict(epochs=5, batch_size=16, learning_rate=0.02))
    config.watch, config.measurements = "all", dict(personal="personal_models")
    arms = {
        "local": dict(private="all"),
        "fedavg": dict(),
        **{name: dict(methods={name: dict()}, network=dict(head=HEADS.get(name, "linear"))) for name in METHODS},
    }
    decov = {
        f"{name}_decov": {**arms[name], "methods": {**arms[name].get("methods", {}), **DECOV}}
        for name in ("local", "fedavg", *WITH_DECOV)
    }
    config.arms = arms | decov
    config.settings = {name: setting for name, setting in DATA.items() if arg in ("offline", name)}
    if arg == "smoke":
        config.seeds, config.rounds, config.evaluate_every, config.training.epochs = (0,), 2, 2, 1
        config.network = dict(name="mlp", hidden=(16, 16))
        config.arms = {name: (arms | decov)[name] for name in ("local", "fedavg", "ditto", "ditto_decov")}
        config.settings = {"digits": DATA["digits"]}
