"""A local step of each network, beside the same network in PyTorch: two clients, batches of 32 images.

Both train the same number of steps of SGD with momentum on random images, 32x32x3 unless the network needs larger ones.
The engine runs the clients side by side on a device for each core, PyTorch one after another with all cores, or side by
side in a thread for each core.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

CLIENTS, STEPS, BATCH_SIZE, CLASSES, SEED = 2, 2, 32, 10, 0  # steps of each client in a round
IMAGE_SIZE = {"alexnet": 64}  # others: 32
NETWORKS = (
    *("mlp", "small_cnn", "moon_cnn", "feduv_cnn", "resnet20", "resnet32", "mobilenet_v2", "resnet18", "resnet50"),
    *("efficientnet_b0", "wide_resnet", "alexnet"),
)
LOWERINGS = ("auto", "patches", "timed", "xla")  # that every convolution can take


class Case(NamedTuple):
    """What a worker is to time."""

    network: str
    system: str  # a lowering, pytorch or pytorch-threads
    cores: int


def rounds(case: Case) -> Iterator[None]:
    """Rounds of one network on one system."""
    run = (_pytorch if case.system.startswith("pytorch") else _engine)(case)
    while True:
        yield run()


def _data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    size, count = IMAGE_SIZE.get(case.network, 32), CLIENTS * STEPS * BATCH_SIZE
    return rng.integers(0, 256, (count, size, size, 3), np.uint8), rng.integers(0, CLASSES, count)


def _engine(case: Case) -> Callable[[], None]:
    """A function that runs the next round to its end."""
    import jax

    from experiments.benchmarks import engine_rounds, networks
    from experiments.config import names
    from fedjax_collapse import FedAvg, Federation, LocalTraining, Model
    from fedjax_collapse.engine.timing import with_timed_lowerings
    from fedjax_collapse.simulation.simulation import Hardware, Run, Schedule, check

    devices = min(case.cores, CLIENTS)
    jax.config.update("jax_num_cpu_devices", devices)
    images, labels = _data(case)
    parts = np.split(np.arange(len(labels)), CLIENTS)
    federation = Federation.from_arrays(
        images, labels, parts, images[:1], labels[:1], 128.0, 64.0, networks.CLASS_NAMES
    )
    is_timed = case.system == "timed"
    options = {} if case.network == "mlp" or is_timed else {"lowering": case.system}
    model = Model(names.class_named("network", case.network)(CLASSES, **options), federation.input_shape)
    if is_timed:
        model = with_timed_lowerings(model, BATCH_SIZE, 1, jax.devices()[0])
    run = Run(federation, FedAvg(LocalTraining(1, BATCH_SIZE, 0.01, 0.9)), jax.random.key(SEED))
    compiled = check(run, model, Schedule(1), Hardware(engine_rounds.layout(devices)))
    return functools.partial(next, engine_rounds.rounds(run, compiled))


def _pytorch(case: Case) -> Callable[[], None]:
    """A function that trains every client's steps."""
    import torch

    from experiments.benchmarks import pytorch_networks

    lanes = min(case.cores, CLIENTS) if case.system == "pytorch-threads" else 1
    torch.set_num_threads(max(case.cores // lanes, 1))
    torch.manual_seed(SEED)
    images, labels = _data(case)
    images = ((torch.from_numpy(images).float() - 128) / 64).permute(0, 3, 1, 2)  # channels last in memory
    parts = list(zip(images.chunk(CLIENTS), torch.from_numpy(labels).chunk(CLIENTS), strict=True))
    networks = [
        pytorch_networks.build(case.network, CLASSES, tuple(images.permute(0, 2, 3, 1).shape[1:])).train()
        for _ in range(lanes)
    ]
    networks = [network.to(memory_format=torch.channels_last) for network in networks]

    def train(network, clients):
        optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9)
        for client_images, client_labels in clients:
            for x, y in zip(client_images.split(BATCH_SIZE), client_labels.split(BATCH_SIZE), strict=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

    pool = ThreadPoolExecutor(lanes)
    return lambda: list(pool.map(train, networks, [parts[lane::lanes] for lane in range(lanes)]))
