"""Do methods against dimensional collapse resist attacks, or feed them? Methods by rules by attacks, on digits.

    python experiments/launch.py --config=experiments/configs/robust.py --workdir=runs/robust

Twenty clients, all of them in every round, Dirichlet 0.5, four of them malicious; three dense layers, 15 rounds of
three epochs, three seeds with a partition each. Arms are FedAvg, FedDecorr, DeCov and FedUV, each with the mean, the
median and multi-Krum; settings are the attacks, and none. The success of the backdoor's patch is measured in all of
them, where there is no backdoor as a control, and the ranks of honest and malicious updates. After the colon:
``digits``, the default, or ``smoke``, two rounds of two arms under two attacks.
Small data: not comparable with published tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base

METHODS = {
    "fedavg": dict(),
    "feddecorr": dict(feddecorr=dict(strength=0.1)),
    "decov": dict(decov=dict(strength=0.1)),
    "feduv": dict(feduv=dict()),
}
RULES = {"": dict(), "median": dict(median=dict()), "krum": dict(krum=dict(attackers=4, select=0))}
ATTACKS = {"none": dict()} | {name: {name: dict()} for name in ("label_flip", "backdoor", "alie")}


@base.variants("digits", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.clients, config.rounds = (0, 1, 2), 20, 15
    config.evaluate_every = config.checkpoint_every = config.rounds
    config.partition.alpha, config.partition.min_size = 0.5, 16
    config.network = dict(name="mlp", hidden=(64,) * 3)
    config.training.update(dict(epochs=3, batch_size=16, learning_rate=0.05))
    config.watch, config.measurements = "all", dict(backdoor="backdoor", updates="updates")
    config.arms = {
        "_".join(filter(None, (name, rule))): dict(methods={**method, **RULES[rule]})
        for rule in RULES
        for name, method in METHODS.items()
    }
    config.settings = {name: dict(methods=attack) for name, attack in ATTACKS.items()}
    if arg == "smoke":
        config.seeds, config.rounds, config.evaluate_every, config.training.epochs = (0,), 2, 2, 1
        config.network = dict(name="mlp", hidden=(16, 16))
        config.arms = {name: dict(config.arms[name]) for name in ("fedavg", "decov_krum")}
        config.settings = {name: dict(methods=ATTACKS[name]) for name in ("backdoor", "alie")}
