"""The system ``flower``: Flower's simulation, with an actor of Ray for each core.

Clients have no state, so there are as many nodes as a cohort has clients; each gets the identity of its client.
An actor keeps the data and one network, as the fastest client that we can write would. The peak memory that is
reported is the server's, without the actors'.
"""

import functools
import logging
from collections.abc import Iterator

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.benchmarks import MANY, Round, Setting, rounds_of
from experiments.benchmarks.systems import pytorch_loops
from experiments.benchmarks.workloads import Task, Workload


def run(workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    """Rounds of its ``FedAvg``, weighted as in the workload."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server, client = ServerApp(), ClientApp()
    client.train()(functools.partial(_train, setting.task_file, workload))

    def train(report):
        @server.main()
        def main(grid: Grid, context: Context) -> None:
            state = ArrayRecord(pytorch_loops.network(workload, task).state_dict())
            _Strategy(task, setting, report).start(grid, state, MANY)

        of_ray = {"num_cpus": setting.cores, "num_gpus": 0, "include_dashboard": False}
        resources = {"init_args": of_ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client, num_supernodes=task.cohorts.shape[1], backend_config=resources)

    return rounds_of(train)


class _Strategy(FedAvg):
    """Federated averaging of given cohorts, which reports every round."""

    def __init__(self, task, setting, report):
        nodes = task.cohorts.shape[1]
        super().__init__(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        self.cohorts, self.report, self.layout = task.cohorts, report, f"{setting.cores} actors"

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        for message, client in zip(messages, self.cohorts[(server_round - 1) % len(self.cohorts)], strict=True):
            whose = ConfigRecord({"client": int(client)})
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: whose})
            yield Message(content, message.metadata.dst_node_id, MessageType.TRAIN)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        aggregated = super().aggregate_train(server_round, replies)
        clients = ([reply.content["metrics"][key] for key in ("loss", "samples", "steps")] for reply in replies)
        self.report(pytorch_loops.report(clients, self.layout))
        return aggregated


def _train(task_file, workload, message: Message, context: Context) -> Message:
    steps, data, parts = _resident(task_file, workload)
    steps.network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = parts[message.content["config"]["client"]]
    loss, samples, count = pytorch_loops.train(steps, *data, rows)
    metrics = {"loss": loss, "samples": samples, "steps": count, "num-examples": workload.weight(len(rows))}
    content = {"arrays": ArrayRecord(steps.network.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@functools.cache
def _resident(task_file, workload):
    """The objects that an actor keeps in memory."""
    torch.set_num_threads(1)
    task = Task.load(task_file)
    steps = pytorch_loops.Steps(pytorch_loops.network(workload, task), workload)
    return steps, pytorch_loops.tensors(task.data), [torch.from_numpy(part) for part in task.parts]
