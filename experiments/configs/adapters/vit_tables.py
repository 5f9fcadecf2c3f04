"""Published settings of federated adapters of vision transformers, as far as they can be read, with their numbers.

    python experiments/launch.py --config=experiments/configs/adapters/vit_tables.py:hralora --workdir=runs/hralora

Behind the file name: ``lora_fair`` (DomainNet and NICO++, a domain for each client), ``fed_hello`` and ``hralora``
(CIFAR100, from the logs of their released codes) or ``hilora`` (CIFAR100, personal models; second-hand). Each needs its
data (``docs/data.md``) and a file of weights in the current folder, and hours of a GPU. Arms are those that are methods
here; no table is comparable as it stands, and ``paper.why`` says why. Behind each value stands where it is from: the
paper, its released code, or our choice where it is not known.
"""

from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.config.published import by_setting
from fedjax_collapse.core.records import UserError

VIT_B = dict(name="vit", size="B", patch=16, weights="vit_base_patch16_224_in21k.safetensors")
DEIT_S = dict(name="vit", size="S", patch=16, weights="deit_small_patch16_224.safetensors")
CIFAR100 = dict(source="cifar100", image_size=224, normalisation="half")
DOMAINNET = dict(
    source="tfds:domainnet/clipart,infograph,painting,quickdraw,real,sketch", image_size=224, normalisation="half"
)
QV = dict(layers=("query", "value"))
HETLORA = base.methods(hetlora=dict(ranks=(12, 18, 24)))
SKEWS = {"iid": dict(partition=dict(name="iid"))} | {
    f"{count} classes": dict(partition=dict(name="pathological", classes_per_client=count)) for count in (20, 10)
}


def _adamw(learning_rate, decay, **options):
    optimizer, schedule = dict(name="adamw", weight_decay=0.0), dict(name="decay", factor=decay)
    plain = dict(momentum=0.0, weight_decay=0.0)
    return dict(learning_rate=learning_rate, schedule=schedule, optimizer=optimizer, **plain, **options)


STUDIES = {
    "lora_fair": dict(
        clients=6,  # paper: a domain each
        rounds=50,  # our choice
        network=VIT_B | dict(adapters=dict(rank=16, alpha=16.0, **QV)),  # paper: the rank; alpha and layers are ours
        training=dict(
            epochs=1, batch_size=128, learning_rate=0.01, momentum=0.0, weight_decay=0.0
        ),  # paper, but epochs
        partition=dict(name="domain"),
        arms=dict(
            ffa_lora=base.methods(ffa_lora=dict()),
            fedit=dict(),
            flexlora=base.methods(flexlora=dict()),
            flora=base.methods(flora=dict()),
            lora_fair=base.methods(lora_fair=dict(objective="cosine")),  # paper, whose strength is 0.01
        ),
        settings={
            "domainnet": dict(data=DOMAINNET),
            "nico": dict(data=dict(source="folder:NICO++", domains=True, image_size=224)),
        },
    ),
    "fed_hello": dict(
        clients=100,  # released code, as all of these but the ranks of hetlora and flexlora, which are our choice
        participation=0.1,
        rounds=500,
        evaluate_every=1,
        data=CIFAR100,
        network=VIT_B | dict(adapters=dict(rank=24, alpha=16.0, dropout=0.1, **QV)),
        training=_adamw(0.01, 0.99, epochs=1, batch_size=128),
        arms=dict(hetlora=HETLORA, flexlora=base.methods(flexlora=dict(ranks=(12, 18, 24)))),
        settings=SKEWS,
    ),
    "hralora": dict(
        clients=20,  # its logs; its released configs have 100, and 10 of them in a round
        participation=0.25,
        rounds=200,
        evaluate_every=1,
        data=CIFAR100 | dict(normalisation="imagenet"),  # of DeiT's weights
        network=DEIT_S | dict(adapters=dict(rank=24, alpha=24.0, **QV)),  # released code; alpha is our choice
        training=_adamw(1e-3, 0.95, epochs=1, batch_size=32, freeze="head"),  # released code: train_classifier false
        arms=dict(fedit=dict(), ffa_lora=base.methods(ffa_lora=dict()), hetlora=HETLORA),
        settings=SKEWS,
    ),
    "hilora": dict(
        clients=100,
        rounds=50,
        data=CIFAR100,
        network=VIT_B | dict(adapters=dict(rank=8, alpha=8.0, **QV)),  # the rank is our choice
        training=dict(epochs=1, batch_size=32, learning_rate=0.01, momentum=0.0, weight_decay=0.0),  # our choice
        arms=dict(fedsa_lora=base.methods(fedsa_lora=dict())),
        settings={
            "dirichlet 0.3": dict(partition=dict(name="dirichlet", alpha=0.3)),
            "10 classes": dict(partition=dict(name="pathological", classes_per_client=10)),
        },
    ),
}
PAPERS = {  # source, why it is not comparable, metric, and by arm a number for each setting
    "lora_fair": (
        "LoRA-FAIR (Bian et al., 2025), ViT",
        "rounds, classes and local epochs of the paper are not known",
        "accuracy",
        {
            "ffa_lora": (72.82, 90.28),
            "fedit": (75.75, 90.58),
            "flora": (75.53, 90.93),
            "flexlora": (76.02, 90.60),
            "lora_fair": (77.07, 91.24),
        },
    ),
    "fed_hello": (
        "logs of Fed-HeLLo's released code",
        "its HetLoRA weights clients by the last layer only, its FlexLoRA is not tuned, and their ranks are not known",
        "last10_accuracy",
        {"hetlora": (84.1, 78.1, 67.0), "flexlora": (32.0, 32.0, 27.0)},
    ),
    "hralora": (
        "logs of HRALoRA's released code",
        "which of its configs the logs belong to is not known",
        "last10_accuracy",
        {"fedit": (83.7, 68.8, 52.6), "ffa_lora": (77.3, 53.5, 34.0), "hetlora": (82.8, 67.5, 52.6)},
    ),
    "hilora": (
        "HiLoRA (CVPR 2026), second-hand",
        "rank, optimizer and the division of examples within classes are not known",
        "accuracy",
        {"fedsa_lora": (78.6, 86.0)},
    ),
}


def get_config(arg: str = "") -> ConfigDict:
    if arg not in STUDIES:
        raise UserError(f"expected one of {', '.join(STUDIES)} after the file name")
    config = base.get_config()
    config.seeds, config.evaluate_every = (0, 1, 2), 5  # our choice
    for key, value in STUDIES[arg].items():
        if isinstance(value, dict) and key in ("network", "training"):
            config[key].update(value)
        else:
            config[key] = value
    source, why, metric, rows = PAPERS[arg]
    values = by_setting(rows, STUDIES[arg]["settings"])
    config.paper = dict(source=source, comparable=False, why=why, metric=metric, values=values)
    return config
