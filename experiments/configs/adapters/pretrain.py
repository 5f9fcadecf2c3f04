"""The backbone of the studies with adapters: a small ViT, trained on synthetic letters, and a head for digits on it.

    python experiments/launch.py --config=experiments/configs/adapters/pretrain.py --workdir=runs/letters
    fedjax-collapse export runs/letters/central/seed0 --out=runs/letters.safetensors
    python experiments/launch.py --config=experiments/configs/adapters/pretrain.py:head --workdir=runs/digits_head
    fedjax-collapse export runs/digits_head/central/seed0 --out=runs/digits_head.safetensors

One client holds all data. The first study trains the whole network on 12,000 upper-case letters, half of them clean and
half textured, for 20 epochs; the second only a new head, on the training part of ``mnist5k`` and features that stay as
they are. It stands for a head that clients fit together before they train adapters, as statistics of frozen
features allow. Behind the file name: nothing, ``head``, or ``smoke``, two rounds on few letters.
"""

from ml_collections import ConfigDict

from experiments.configs import base

LETTERS = dict(source="glyphs", num_classes=26, image_size=28, channels=1, domains=("clean", "textured"))
DIGITS = dict(source="mnist5k", normalisation="half")  # that of the letters, whose pixels are from -1 to 1
VIT = dict(name="vit", size="micro", patch=7)
BACKBONE, HEAD = "runs/letters.safetensors", "runs/digits_head.safetensors"


@base.variants("", "head", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.arms = dict(central=dict())
    config.clients, config.partition = 1, dict(name="iid")
    config.network = VIT
    config.rounds, config.evaluate_every, config.checkpoint_every = 20, 5, 5
    config.training.update(dict(epochs=1, momentum=0.0, weight_decay=0.0, schedule="cosine", momentum_reset=False))
    if arg == "head":
        config.data = DIGITS
        config.network.weights = BACKBONE
        config.training.update(dict(batch_size=32, learning_rate=0.01, freeze="body", optimizer=dict(name="adam")))
        return
    config.data = dict(**LETTERS, train_size=6000, test_size=1000)
    config.training.update(
        dict(batch_size=128, learning_rate=1e-3, clip_norm=1.0, optimizer=dict(name="adamw", weight_decay=0.03))
    )
    if arg == "smoke":
        config.data.update(dict(train_size=128, test_size=64))
        config.rounds, config.evaluate_every, config.checkpoint_every = 2, 2, 2
