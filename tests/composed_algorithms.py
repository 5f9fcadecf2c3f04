"""All methods, as many in one algorithm as go together, and the least network that they accept.

Of the methods of adapters, which share their parts, those that together have all of them: a factor that stays private,
adapters that are drawn at the client and a moved base, ranks that change, a pseudoinverse, and a decomposition.
"""

import dataclasses
import functools
from collections.abc import Sequence

from experiments.benchmarks.overheads import accepted
from fedjax_collapse import FedAvg, Model, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.nn.adapters import LoRA

_OPTIONS = {name: dict(ranks=(1, 2)) for name in ("hetlora", "raflora", "rb_lora")}
_OPTIONS |= {"fedper": dict(newcomers="mean"), "structured_decov": dict(num_groups=2)}
_OPTIONS |= {
    "fedmr": dict(initial_prototypes=True),
    "dp_fedavg": dict(quantile=0.5, bit_noise=1.0),
    "alie": dict(z=1.0),
}
_OPTIONS |= {name: dict(finetune=True) for name in ("afl", "fed3r", "fedcgs")}
_OF_ADAPTERS = ("fedsa_lora", "flora", "hetlora", "lora_fair", "raflora")


@functools.cache
def composed() -> list[FedAvg]:
    """With at most nine methods each; by themselves those of adapters, beside which the network is frozen, and one
    with noise for all uploads, which allows no other reports; those that compare views among themselves, as what
    others compute of two views is compiled for long, and magnifies rounding."""
    found = []
    for name, kind in METHODS.items():
        own = {name: kind(**_OPTIONS.get(name, {}))}
        if "adapters" in own[name].needs and name not in _OF_ADAPTERS:
            continue
        for place, algorithm in enumerate(found):
            extended = algorithm.replace(methods={**algorithm.methods, **own})
            has_views = {"views" in method.needs for method in extended.methods.values()}
            is_alone = len(has_views) > 1 or any(
                "adapters" in method.needs or method.has("perturb") for method in extended.methods.values()
            )
            if len(algorithm.methods) < 9 and not is_alone and network_of(extended):
                found[place] = extended
                break
        else:
            found.append(FedAvg(methods=own))
    return found


def network_of(algorithm: FedAvg, num_classes: int = 4) -> Model | None:
    """The least network that all methods of the algorithm accept; None without."""
    width = 8 if any("views" in method.needs for method in algorithm.methods.values()) else num_classes
    modules = [nn.MLP(num_classes, hidden=(width,), norm=norm) for norm in ("none", "batch")]
    return first_accepted(algorithm, [Model(module, (8, 8, 2)) for module in modules])


def first_accepted(algorithm: FedAvg, models: Sequence[Model]) -> Model | None:
    """The first model, perhaps with another head, or else the first one with adapters, that all methods accept."""
    adapted = dataclasses.replace(models[0], adapters=LoRA(2, 8.0, layers=("all",)))
    return next(filter(None, (accepted(algorithm, model) for model in (*models, adapted))), None)
