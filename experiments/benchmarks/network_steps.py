"""A local step of each network, compared with the same network in PyTorch: two clients, ten on a GPU, of 32 images.

Both train the same number of steps of SGD with momentum on random images, 32x32x3 unless the network needs larger ones.
The engine runs the clients in parallel on a device for each core; PyTorch runs them one after another with all cores,
or in parallel in a thread for each core.
"""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from experiments.benchmarks.tasks import Data

CLIENTS = {"cpu": 2, "gpu": 10}
STEPS, BATCH_SIZE, CLASSES, SEED = 2, 32, 10, 0  # steps of each client in a round
IMAGE_SIZE = {"alexnet": 64}  # others: 32
NETWORKS = (
    *("mlp", "small_cnn", "moon_cnn", "feduv_cnn", "resnet20", "resnet32", "mobilenet_v2", "resnet18", "resnet50"),
    *("efficientnet_b0", "wide_resnet", "alexnet", "vit"),
)
NOT_CONVOLUTIONAL = ("mlp", "vit")  # whose layers have no lowering
LOWERINGS = ("auto", "patches", "timed", "xla")  # valid for every convolution


def rounds(network: str, system: str, cores: int, device: str = "cpu") -> Iterator[None]:
    """Rounds of one network; ``system``: a lowering, "pytorch" or "pytorch-threads"."""
    run = (_pytorch if system.startswith("pytorch") else _engine)(network, system, cores, device)
    while True:
        yield run()


def _data(network: str, clients: int) -> Data:
    rng = np.random.default_rng(SEED)
    size, count = IMAGE_SIZE.get(network, 32), clients * STEPS * BATCH_SIZE
    images, labels = rng.integers(0, 256, (count, size, size, 3), np.uint8), rng.integers(0, CLASSES, count)
    return Data(images, labels, 128.0, 64.0)


def _engine(network: str, system: str, cores: int, device: str) -> Callable[[], None]:
    """Returns a function that runs the next round to its end."""
    import jax

    from experiments.benchmarks import engine_rounds
    from experiments.config import names
    from fedjax_collapse import FedAvg, LocalTraining, Model
    from fedjax_collapse.engine.timing import with_timed_lowerings

    clients = CLIENTS[device]
    devices, at_once = (1, clients) if device == "gpu" else (min(cores, clients), 1)
    jax.config.update("jax_num_cpu_devices", devices)
    data, is_timed = _data(network, clients), system == "timed"
    options = {} if network in NOT_CONVOLUTIONAL or is_timed else {"lowering": system}
    model = Model(names.class_named("network", network)(CLASSES, **options), data.inputs.shape[1:])
    if is_timed:
        model = with_timed_lowerings(model, BATCH_SIZE, at_once, jax.devices()[0])
    algorithm, parts = FedAvg(LocalTraining(1, BATCH_SIZE, 0.01, 0.9)), np.split(np.arange(len(data.labels)), clients)
    layout = engine_rounds.layout(devices, at_once)
    prepared = engine_rounds.prepare(data, parts, algorithm, model, layout)
    return functools.partial(next, engine_rounds.rounds(*prepared))


def _pytorch(network: str, system: str, cores: int, device: str) -> Callable[[], None]:
    """Returns a function that trains every client's steps."""
    import torch

    from experiments.benchmarks import pytorch_loops, pytorch_networks

    clients, place = CLIENTS[device], pytorch_loops.place(device)
    lanes = min(cores, clients) if system == "pytorch-threads" else 1
    torch.set_num_threads(max(cores // lanes, 1))
    torch.manual_seed(SEED)
    images, labels, mean, std = _data(network, clients)
    shape, images = images.shape[1:], (torch.from_numpy(images).to(place).float() - mean) / std
    images = images.permute(0, 3, 1, 2)  # channels last in memory
    parts = list(zip(images.chunk(clients), torch.from_numpy(labels).to(place).chunk(clients), strict=True))
    networks = [pytorch_networks.build(network, CLASSES, shape).train() for _ in range(lanes)]
    networks = [network.to(place, memory_format=torch.channels_last) for network in networks]

    def train(network, clients):
        optimizer = torch.optim.SGD(network.parameters(), 0.01, 0.9)
        for client_images, client_labels in clients:
            for x, y in zip(client_images.split(BATCH_SIZE), client_labels.split(BATCH_SIZE), strict=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()
        if device == "gpu":
            torch.cuda.synchronize()

    pool = ThreadPoolExecutor(lanes)
    return lambda: list(pool.map(train, networks, [parts[lane::lanes] for lane in range(lanes)]))
