"""Appendices D.2 and D.3 of FedDecorr's ICLR version (2023): spectra of global models, other networks and data.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_networks.py:offline --workdir=runs/nets

* ``:full``: FedAvg with ResNet18 and ResNet32 on CIFAR100 (D.2, figure 8), with MobileNetV2 on CIFAR10 and
  Tiny-ImageNet (D.3, figure 9), at four skews each. ``docs/data.md`` says how to get the data.
* ``:offline``: narrower ones on 8x8 digits, and a small network on glyphs of ten and of a hundred classes.
* ``:smoke``: two rounds of one skew.

Other methods, D.1: ``appendix_methods.py``. The data set of D.2 is not named; D.3 says that the main text's is
CIFAR100. Not known: how many of the largest values the figures show.
"""

from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS
from fedjax_collapse.config.published import GLYPHS, GLYPHS_100, crossed


def _networks(data, **options):
    networks = {name: dict(network=dict(name=name, **options)) for name in ("resnet18", "resnet32")}  # paper
    return base.settings(networks, data)


def _offline(width):
    glyphs = dict(glyphs10=dict(data=GLYPHS), glyphs100=dict(data=GLYPHS_100))
    return crossed(_networks("digits", width_multiplier=width) | glyphs, base.skews(ALPHAS))


get_config = base.study(
    arms=base.arms("fedavg"),
    settings=crossed(_networks("cifar100"), base.skews(ALPHAS)) | base.settings(base.skews(ALPHAS), "cifar10", "tiny"),
    offline_settings=_offline(width=0.25),
    offline=base.OFFLINE_100 | dict(seeds=(0,)),
    smoke=[f"{name}-0.25" for name in ("digits-resnet18", "digits-resnet32", "glyphs10", "glyphs100")],
    smoke_settings=_offline(width=0.1),
)
