"""How the cost of a round grows with the number of clients, all of which take part in every round.

Clients are equally large and draw their examples from one pool, so that nothing but their number grows.
"""

import numpy as np

from experiments.benchmarks.tasks import Task
from experiments.benchmarks.workloads import SEED, Workload, complete_task

WORKLOADS = ("mlp100", "cnn100")  # whose data, network and training it takes
EXAMPLES = 64  # of each client
ROUNDS = {10: 50, 100: 10, 1000: 5}  # to time, by number of clients


def make_task(workload: Workload, clients: int, rounds: int) -> Task:
    """Returns the task of this many clients, each with distinct examples of the workload."""
    rng = np.random.default_rng(SEED)
    data = workload.data(workload.examples)
    parts = [rng.choice(len(data.labels), EXAMPLES, replace=False) for _ in range(clients)]
    return complete_task(workload, data, parts, clients, rounds)
