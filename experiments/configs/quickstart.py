"""What raises rank and what raises accuracy: FedAvg, FedDecorr and CCVR on 1,797 real handwritten digits.

    python experiments/launch.py --config=experiments/configs/quickstart.py

The digits of scikit-learn, ten clients, Dirichlet 0.05, a small convolutional network with BatchNorm, twelve rounds of
five local epochs, five seeds, each with its own partition. Behind the file name: ``smoke`` (two rounds of one seed, to
see that everything works) or ``mnist`` (4,000 digits of 28x28 pixels, 20 rounds, a quarter of an hour, needs the extra
``mnist5k``). docs/results.md says how the setting was chosen.
A demonstration on small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base

ARMS = {
    "fedavg": dict(),
    "feddecorr": base.methods(feddecorr=dict(strength=0.1, variant="official")),
    "ccvr": base.methods(ccvr=dict()),
}
NETWORK = dict(name="small_cnn", channels=(16, 32, 64))


@base.variants("", "smoke", "mnist")
def get_config(config: ConfigDict, arg: str) -> None:
    if arg == "smoke":
        config.rounds, config.partition.seed = 2, 0
        config.arms = {name: ARMS[name] for name in ("fedavg", "feddecorr")}
        return
    config.arms, config.network, config.seeds = ARMS, NETWORK, (0, 1, 2, 3, 4)
    config.partition.alpha, config.training.learning_rate = 0.05, 0.03
    if arg == "mnist":
        config.data.source, config.rounds = "mnist5k", 20
    else:
        config.rounds, config.training.batch_size = 12, 16
        config.training.drop_last = True  # a last batch of two images of one class makes FedDecorr's gradient explode
