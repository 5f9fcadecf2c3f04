"""The systems ``pytorch-graph``: a training step as one CUDA graph, captured once and replayed for every whole batch.

The graph has the forward and backward pass and fused SGD, as in PyTorch's notes on CUDA graphs. A batch that is not
whole runs eagerly.
"""

import functools
from collections.abc import Iterator

import torch

from experiments.benchmarks import Round, Setting
from experiments.benchmarks.systems import pytorch_loops
from experiments.benchmarks.workloads import Task, Workload

WARM_UP = 5  # eager steps before a capture, which choose kernels and make momenta


class GraphSteps(pytorch_loops.Steps):
    """Steps that are replayed.

    Args:
        network: on a GPU.
        workload: the task and training.
        dtype: of the forward pass and its products; weights, gradients and momenta are float32.
    """

    def __init__(self, network: torch.nn.Module, workload: Workload, dtype: torch.dtype) -> None:
        super().__init__(network, workload)
        self.dtype, self._graphs = dtype, {}
        rate, momentum = self.training.learning_rate, self.training.momentum
        self._optimizer = torch.optim.SGD(self.weights, rate, momentum, fused=True)

    def restart(self) -> None:
        """Sets momenta to zero, from where a first step is that of new ones."""
        found = (state.get("momentum_buffer") for state in self._optimizer.state.values())
        if momenta := [buffer for buffer in found if buffer is not None]:
            torch._foreach_zero_(momenta)

    def __call__(self, x: torch.Tensor, y: torch.Tensor, towards: list[torch.Tensor] | None = None) -> torch.Tensor:
        """As of ``Steps``; ``towards`` are always the same tensors."""
        if len(y) < self.training.batch_size:
            return self._step(x, y, towards).clone()
        if (towards is None) not in self._graphs:
            self._graphs[towards is None] = self._capture(x, y, towards)
        graph, inputs, labels, loss = self._graphs[towards is None]
        inputs.copy_(x)
        labels.copy_(y)
        graph.replay()
        return loss.clone()

    def _step(self, x, y, towards):
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", self.dtype, enabled=self.dtype != torch.float32, cache_enabled=False):
            loss = pytorch_loops.loss_of(self.task, self.network(x), y)
        loss.backward()
        if towards is not None:
            with torch.no_grad():
                gradients = [weight.grad for weight in self.weights]
                torch._foreach_add_(gradients, torch._foreach_sub(self.weights, towards))
        self._optimizer.step()
        return loss.detach()

    def _capture(self, x, y, towards):
        """Returns the graph, its inputs and its loss, with network and momenta as they were before."""
        changed = pytorch_loops.pytorch_networks.tensors(self.network)
        before, x, y = [tensor.detach().clone() for tensor in changed], x.clone(), y.clone()
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._step(x, y, towards)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            loss = self._step(x, y, towards)
        with torch.no_grad():
            torch._foreach_copy_(changed, before)
        self.restart()
        return graph, x, y, loss


def _run(dtype: torch.dtype, workload: Workload, task: Task, setting: Setting) -> Iterator[Round]:
    make = functools.partial(GraphSteps, dtype=dtype)
    device = pytorch_loops.place(setting.device)
    for done in pytorch_loops.averaging(workload, task, make, threads_of_each=setting.cores, device=device):
        yield done._replace(layout=f"CUDA graph, {str(dtype).removeprefix('torch.')}")


float32 = functools.partial(_run, torch.float32)
bfloat16 = functools.partial(_run, torch.bfloat16)
