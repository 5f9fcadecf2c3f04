"""The suites that are measured in one process: costs of methods, augmentations, stores and adapters.

Rounds of the baseline, the first arm, and of all others follow one another, so that changes of the machine's speed
cancel: a ratio is that of adjacent rounds.

* ``methods``: each over federated averaging. Ten clients with about a hundred synthetic images 32x32x3 each, ten local
  epochs in batches of 64 as in FedDecorr's experiments, the small CNN of ``cnn100``, no augmentation.
* ``augmentations``: each over none, in federated averaging of the same clients for two local epochs. Presets that are
  the same function share a row; presets that need or produce images of another size than 32x32 pixels are omitted.
* ``adapters``: all weights of a ``vit`` over low-rank adapters of rank 8 of queries and values. The gradient with
  respect to a frozen weight is left out, a third of all products; what acts on every weight once a step, whatever its
  batch, as the optimizer does, is left out too. Clients that train at once share the products of the base, which are
  slow with few rows: on a CPU several do so where a batch is small.
* ``storage``: ``storage_rounds.py``.
"""

import dataclasses
import functools
import itertools
from argparse import Namespace
from collections.abc import Collection, Iterator

import jax

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.systems import engine_rounds, storage_rounds
from experiments.benchmarks.workloads import OVERHEADS, make_task, of_batches
from fedjax_collapse import SELF_SUPERVISED, FedAvg, LocalTraining, Model, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.augment import PRESETS, Augmentation, flip, output_shape
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.heads import Siamese
from fedjax_collapse.nn.network import HEADS
from fedjax_collapse.schema.options import with_options

TRAINING = LocalTraining(*OVERHEADS.training, weight_decay=1e-5)
AUGMENTED = TRAINING.replace(epochs=2)  # few, as an augmentation costs the same in each
_BATCHES = ((8, 1), (1, 1), (1, 5))  # of adapters: images, and clients at once on each core
Arms = dict[str, Iterator[Round]]


def methods(
    names: Collection[str] | None = None, training: LocalTraining = TRAINING, model: Model | None = None
) -> dict[str, FedAvg]:
    """Returns federated averaging, alone and with each method that accepts the network with some head, by name.

    Args:
        names: of the methods; None is all.
        training: of the clients.
        model: the network, by default the one described above.
    """
    model = model or OVERHEADS.model()
    chosen = {name: kind for name, kind in METHODS.items() if names is None or name in names}
    of_views = training.replace(augmentation=flip)  # the cheapest, as both views need one
    found = {
        kind.__name__: FedAvg(of_views if "views" in kind().needs else training, {name: kind()})
        for name, kind in chosen.items()
    }
    return {"FedAvg": FedAvg(training)} | {name: method for name, method in found.items() if accepted(method, model)}


def accepted(algorithm: FedAvg, model: Model) -> Model | None:
    """The model with the first head, starting with its own, that all methods of the algorithm accept; None if none."""
    if not _is_accepted(algorithm):
        return None
    has_head = any(field.name == "head" for field in dataclasses.fields(model.module))
    needs_views = any("views" in method.needs for method in algorithm.methods.values())
    heads = [head for head in HEADS.values() if head is not Siamese] if has_head else []
    others = [model.with_module(head=head) for head in heads]
    if has_head and needs_views:
        siamese = with_options(Siamese, hidden=256, dim=model.initial_shapes().features.shape[-1])
        others.append(dataclasses.replace(model.with_module(head=siamese), task=SELF_SUPERVISED))
    return next((other for other in (model, *others) if _is_accepted(algorithm, other)), None)


def _is_accepted(algorithm, model=None):
    try:
        algorithm.check(model)
    except UserError:
        return False
    return True


def augmentations() -> dict[str, Augmentation | None]:
    """Every distinct preset for images of this size, under all its names; the first is no augmentation."""
    names = {PRESETS["none"]: []}
    for name, augmentation in PRESETS.items():
        names.setdefault(augmentation, []).append(name)
    distinct = {", ".join(same): augmentation for augmentation, same in names.items() if _takes_images(augmentation)}
    return distinct | {next(iter(distinct)): None}  # as in a run, where images then go through no function


def _takes_images(augmentation):
    try:
        return output_shape(augmentation, OVERHEADS.input_shape) == OVERHEADS.input_shape
    except UserError:
        return False


def arms(asked: Namespace, cores: int) -> Iterator[tuple[str, Arms]]:
    """Yields what is compared with each other, by name, the baseline first, and a title; see ``arguments.py``."""
    jax.config.update("jax_num_cpu_devices", cores)  # before anything is computed
    setting = Setting(cores, device=asked.device)
    if asked.suite == "storage":
        yield from storage_rounds.arms(asked, cores)
    elif asked.suite == "adapters":
        yield from _adapters(asked, setting)
    else:
        presets = {} if asked.suite == "methods" else augmentations()
        algorithms = {name: FedAvg(AUGMENTED.replace(augmentation=preset)) for name, preset in presets.items()}
        workload = dataclasses.replace(OVERHEADS, examples=round(asked.scale * OVERHEADS.examples))
        task, model = make_task(workload, 1), workload.model()
        run = functools.partial(engine_rounds.run, workload, task, setting)
        chosen = algorithms or methods(asked.only)
        yield "", {name: run(algorithm, accepted(algorithm, model)) for name, algorithm in chosen.items()}


def _adapters(asked, setting):
    lora = LoRA(8, 16.0, layers=("query", "value"))
    is_on_cpu = asked.device == "cpu"
    for patch, (batch_size, clients) in itertools.product((4, 8), _BATCHES if is_on_cpu else _BATCHES[:2]):
        adapted = _vit(of_batches(batch_size, clients), patch, lora, "base", setting)
        whole = _vit(of_batches(batch_size, 1), patch, None, "none", setting)
        at_once = f", {clients} at once" if is_on_cpu else ""
        title = f"mini, {(32 // patch) ** 2 + 1} tokens, batch {batch_size}{at_once}"
        yield title, {"adapters": adapted, "all weights": whole}


def _vit(workload, patch, adapters, freeze, setting):
    model = Model(nn.ViT(10, size="mini", patch=patch), workload.input_shape, adapters=adapters)
    algorithm = FedAvg(LocalTraining(*workload.training, freeze=freeze))
    return engine_rounds.run(workload, make_task(workload, 1), setting, algorithm=algorithm, model=model)
