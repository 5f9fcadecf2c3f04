"""FedDecorr, FedMR, FedUV and the methods after them, side by side on label skew: digits or glyphs.

    python experiments/launch.py --config=experiments/configs/label_skew.py:digits

Behind the file name: ``digits`` (1,797 real handwritten digits of 8x8 pixels, Dirichlet 0.1) or ``glyphs`` (synthetic
characters of 32x32x3 pixels, Dirichlet 0.1), or ``smoke``, two rounds of one seed. Ten clients, all of them in every
round; each seed draws its own partition. Every method has the strengths of its paper or released code where they are
known (docs/methods.md), none is tuned to these data. FedPer, FedRep and LG-FedAvg are scored on every client's own
classes, so their accuracy is not to be compared with the others'.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base

METHODS = {
    "fedavg": dict(),
    "feddecorr": base.methods(feddecorr=dict(strength=0.1)),
    "fedmr": base.methods(fedmr=dict(intra=1e-5, inter=0.1, variant="paper")),  # as in glyphs.py
    "feduv": base.methods(feduv=dict(variance=2.5, uniformity=0.5)),
    "balanced_softmax": base.methods(balanced_softmax=dict()),
    "fedlc": base.methods(fedlc=dict(tau=0.5)),
    "fedrs": base.methods(fedrs=dict(alpha=0.5)),
    "fedntd": base.methods(fedntd=dict(strength=1.0, temperature=1.0)),
    "fedvls": base.methods(fedvls=dict(distillation=0.1)),
    "fedetf": dict(methods=dict(fedetf=dict()), network=dict(head="etf")),
    "fedgela": dict(methods=dict(fedgela=dict()), network=dict(head="etf")),
    "feddr_plus": dict(methods=dict(feddr_plus=dict(beta=0.9)), network=dict(head="simplex")),
    "fedrcl": base.methods(fedrcl=dict(levels="last")),  # as in docs/results.md; published is "all"
    "fedsam": base.methods(fedsam=dict(rho=0.1)),
    "fedlesam": base.methods(fedlesam=dict(rho=0.1)),
    "mofedsam": base.methods(fedsam=dict(rho=0.1), fedcm=dict(alpha=0.1)),
    "fedexp": base.methods(fedexp=dict(eps=1e-3)),
    "ccvr": base.methods(ccvr=dict()),
    "fedvls_feddecorr": base.methods(fedvls=dict(distillation=0.1), feddecorr=dict(strength=0.1)),
    "fedper": base.methods(fedper=dict()),
    "fedrep": base.methods(fedrep=dict(head_epochs=4, body_epochs=1)),  # as many epochs as the others
    "lg_fedavg": base.methods(lg_fedavg=dict()),
}


@base.variants("digits", "glyphs", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.rounds, config.evaluate_every = (0, 1, 2), 20, 10
    config.network = dict(name="small_cnn", channels=(16, 32, 64))
    config.arms, config.watch = METHODS, "all"
    if arg == "glyphs":
        config.data = dict(source="glyphs", num_classes=10, train_size=2000, test_size=1000)
        config.network = dict(name="feduv_cnn")
        config.training.epochs = 2
    elif arg == "smoke":
        config.seeds, config.rounds, config.evaluate_every = (0,), 2, 1
        config.network.channels, config.training.epochs = (4, 16), 1
