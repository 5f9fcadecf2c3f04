"""Two whole rounds of federated averaging and FedDecorr against a plain PyTorch loop."""

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close
from torch_reference import TRAINING, Method, reference

from fedjax_collapse import FedAvg, FedDecorr, Model, engine, nn, simulate


class OfficialFedDecorr(Method):
    """FedDecorr as its released code computes it, times 0.1."""

    def penalty(self, step):
        count, dim = step.features.shape
        if count == 1:
            return 0.0
        standardized = (step.features - step.features.mean(0)) / torch.sqrt(1e-8 + step.features.var(0))
        product = standardized.T @ standardized
        off_diagonal = ~torch.eye(dim, dtype=torch.bool)
        return 0.1 * (product[off_diagonal] ** 2).mean() / count


@pytest.fixture(params=["float64", "float32"])
def setting(request):
    """Tolerance, rounds and layout: two rounds in double precision, where nothing hides in rounding, and one in single.

    FedDecorr divides by the deviation of features, which in so small a network may be near 0: rounding errors of the
    first round grow in the second.
    """
    if request.param == "float32":
        yield 1e-5, 1, engine.Chunked(2)
        return
    torch.set_default_dtype(torch.float64)
    with jax.enable_x64(True):
        yield 1e-11, 2, engine.Chunked(1)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("methods", "method"),
    [({}, Method()), ({"feddecorr": FedDecorr(0.1, "official")}, OfficialFedDecorr())],
    ids=["fedavg", "feddecorr"],
)
def test_rounds_equal_a_plain_pytorch_loop(federation, methods, method, setting):
    tolerance, rounds, client_map = setting
    model = Model(nn.SmallCNN(4, channels=(5, 7)), federation.input_shape)
    variables = model.init(jax.random.key(0))  # no feature is nearly dead: FedDecorr divides by its deviation
    algorithm, key = FedAvg(TRAINING, methods), jax.random.key(7)
    result = simulate(federation, model, algorithm, rounds=rounds, key=key, variables=variables, client_map=client_map)
    expected = reference(federation, variables, jax.random.split(key)[1], method, rounds)
    assert_close(result.variables, expected, tolerance)
    leaves = zip(*map(jax.tree.leaves, (expected, jax.device_get(variables))), strict=True)
    assert min(np.abs(a - b).max() for a, b in leaves) > 1e-3  # every leaf was trained, so agreement means something
