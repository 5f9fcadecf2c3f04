"""Does a network train equally well in bfloat16? Accuracies of other numerics less those of float32, on equal seeds.

    python experiments/launch.py --config=experiments/configs/rank/equal_training.py:digits --workdir=runs/equal
    fedjax-collapse report runs/equal --format=md

FedAvg and FedDecorr with ``small_cnn``, or another network by ``--config.network.name=resnet20``, 20 rounds. Arms
``patches`` and ``xla`` are float32 with other lowerings of convolutions: their differences are of rounding alone.
Behind the file name: ``digits`` (five seeds), ``mnist5k`` (two; needs that extra) or ``smoke``.
Both together are 14 pairs of runs. On a CPU, where ``xla`` is slow: ``--arm=float32,bfloat16,patches``.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from experiments.configs.feddecorr.base import WITH_AND_WITHOUT

SEEDS = {"digits": 5, "mnist5k": 2}
NUMERICS = {
    "float32": dict(),
    "bfloat16": dict(network=dict(dtype="bfloat16")),
    "patches": dict(network=dict(lowering="patches")),
    "xla": dict(network=dict(lowering="xla")),
}


@base.variants(*SEEDS, "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.arms, config.settings, config.rounds, config.evaluate_every = NUMERICS, WITH_AND_WITHOUT, 20, 5
    if arg == "smoke":
        config.network.channels, config.rounds, config.training.epochs = (16,), 2, 1
    else:
        config.data.source, config.seeds = arg, tuple(range(SEEDS[arg]))
