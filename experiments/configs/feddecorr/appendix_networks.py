"""Appendices D and E of FedDecorr's ICLR version (2023): spectra of FedAvg with other networks and on other data.

    python experiments/launch.py --config=experiments/configs/feddecorr/appendix_networks.py:offline --workdir=runs/nets

* ``:full``: ResNet18 and ResNet32 on CIFAR100, MobileNetV2 on CIFAR10 and Tiny-ImageNet, at four skews each, all ten
  local models. ``docs/data.md`` says how to get the data.
* ``:offline``: narrower ones on 8x8 digits, and a small network on glyphs of ten and of a hundred classes.
* ``:smoke``: two rounds of one skew.

Other methods of these appendices: ``appendix_methods.py``. Not known: the data set of the other networks; ours is that
of figures 2 to 7.
"""

from experiments.config.published import GLYPHS, GLYPHS_100, crossed
from experiments.configs.feddecorr import base
from experiments.configs.feddecorr.figures2_7 import ALPHAS


def _networks(data, **options):
    networks = {name: dict(network=dict(name=name, **options)) for name in ("resnet18", "resnet32")}  # paper
    return base.settings(networks, data)


def _offline(width):
    glyphs = dict(glyphs10=dict(data=GLYPHS), glyphs100=dict(data=GLYPHS_100))
    return crossed(_networks("digits", width_multiplier=width) | glyphs, base.skews(ALPHAS))


get_config = base.study(
    __file__,
    arms=base.arms("fedavg"),
    watch="all",  # paper
    full=dict(
        settings=crossed(_networks("cifar100"), base.skews(ALPHAS))
        | base.settings(base.skews(ALPHAS), "cifar10", "tiny")
    ),
    offline=base.OFFLINE_100 | dict(seeds=(0,), settings=_offline(width=0.25)),
    smoke=[f"{name}-0.25" for name in ("digits-resnet18", "digits-resnet32", "glyphs10", "glyphs100")],
    smoke_settings=_offline(width=0.1),
)
