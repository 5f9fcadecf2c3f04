"""Networks that count padding rows are refused, those that look across the batch with its mask are not."""

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import cases, check
from tiny_networks import tiny_model

from fedjax_collapse import FedAvg, Federation, Model, Outputs, nn
from fedjax_collapse.nn import heads, padding
from fedjax_collapse.nn.layers import BatchNorm
from fedjax_collapse.nn.padding import check_padding
from fedjax_collapse.run.runs import Run, Schedule, prepare
from fedjax_collapse.schema.options import with_options


class Own(linen.Module):
    """Two dense layers, with ``across`` the batch between them."""

    across: str

    @linen.compact
    def __call__(self, inputs, mask, train):
        features = linen.Dense(6)(inputs.reshape(len(inputs), -1).astype(float))
        features = getattr(self, self.across)(features, mask, train)
        return Outputs(features, linen.Dense(4, name="head")(features))

    def rows_alone(self, features, mask, train):
        return linen.relu(linen.LayerNorm()(features))

    def dropout(self, features, mask, train):
        return linen.Dropout(0.5)(features, deterministic=not train)

    def noise(self, features, mask, train):
        noise = jax.random.normal(self.make_rng("dropout"), features.shape) if train else 0.0
        return BatchNorm()(features + noise, mask, train)

    def own_batch_norm(self, features, mask, train):
        return BatchNorm()(features, mask, train)

    def masked_batch_norm(self, features, mask, train):
        return linen.BatchNorm(use_running_average=not train)(features, mask=mask[:, None])

    def batch_norm(self, features, mask, train):
        return linen.BatchNorm(use_running_average=not train)(features)

    def noisy_batch_norm(self, features, mask, train):
        return self.batch_norm(self.dropout(features, mask, train), mask, train)

    def batch_norm_of_zeros(self, features, mask, train):
        return self.batch_norm(features * mask[:, None], mask, train)

    def batch_norm_in_evaluation(self, features, mask, train):
        return features if train else linen.BatchNorm(use_running_average=False)(features)

    def statistics_alone(self, features, mask, train):
        mean = self.variable("batch_stats", "mean", jnp.zeros, features.shape[1:])
        if train and not self.is_initializing():
            mean.value = features.mean(axis=0)
        return features

    def gradients_alone(self, features, mask, train):
        return features + (features - jax.lax.stop_gradient(features)).mean(axis=0)


WRONG = {
    "batch_norm": "what padding rows hold changes features of the true rows by",
    "noisy_batch_norm": "what padding rows hold changes features of the true rows by",
    "batch_norm_of_zeros": "padding rows change features of the true rows by",
    "batch_norm_in_evaluation": "changes features of the true rows in evaluation by",
    "statistics_alone": "what padding rows hold changes running statistics by",
    "gradients_alone": "what padding rows hold changes gradients by",
}


RIGHT = sorted(name for name in vars(Own) if callable(getattr(Own, name)) and name[0] != "_" and name not in WRONG)
CASES = [(across, jnp.asarray) for across in (*RIGHT, *WRONG)] + [("batch_norm", np.asarray)]


@cases(*CASES)
def test_networks_of_ones_own(across, place, federation):
    model = Model(Own(across), federation.input_shape)
    padding._found.pop(model, None)
    examples = federation.train._replace(inputs=place(federation.train.inputs))
    if across in RIGHT:
        check_padding(model, examples)
        return
    advice = r"take fedjax_collapse[.]nn[.]layers[.]BatchNorm\(\)\(inputs, mask, train\)"
    check(f"^network Own: .*{WRONG[across]}.*{advice}", check_padding, model, examples)


def test_a_run_is_checked_and_the_network_tried_once(federation, monkeypatch):
    calls = []
    tried = padding._problem
    monkeypatch.setattr(padding, "_problem", lambda *arguments: calls.append(1) or tried(*arguments))
    monkeypatch.setattr(padding, "_found", {})
    run = Run(federation, FedAvg(), jax.random.key(0))
    for across in ("batch_norm", "rows_alone") * 2:
        network = Model(Own(across), federation.input_shape)
        if across == "rows_alone":
            prepare(run, network, Schedule(1))
        else:
            check("a layer looks across the batch", prepare, run, network, Schedule(1))
    assert len(calls) == 2


class Head(linen.Module):
    num_classes: int
    scale: float = 1.0

    @linen.compact
    def __call__(self, features):
        return linen.Dense(self.num_classes)(linen.BatchNorm(use_running_average=False)(features))


def test_networks_of_the_library_are_not_tried_but_with_a_head_of_ones_own(federation, monkeypatch):
    for known in (nn.SmallCNN(4), nn.MLP(4, head=with_options(heads.ETF, scale=2.0)), nn.MLP(4, head=heads.ETF)):
        assert padding._is_known(known)
    for head in (Head, with_options(Head, scale=2.0), functools.partial(Head, scale=2.0)):
        model = Model(nn.MLP(4, hidden=(3,), head=head), federation.input_shape)
        check("network MLP: what padding rows hold changes logits", check_padding, model, federation.train)


class Tokens(linen.Module):
    is_normalized: bool

    @linen.compact
    def __call__(self, tokens, mask, train):
        is_word = (tokens > 0)[..., None]
        words = jnp.sum(linen.Embed(9, 8)(tokens) * is_word, axis=1)
        if self.is_normalized:
            words = linen.BatchNorm(use_running_average=not train)(words)
        return Outputs(words, linen.Dense(2, name="head")(words))


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize("count", [3, 40])
def test_integer_inputs_and_few_of_them(is_normalized, count):
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(0, 9, (count, 5)), rng.integers(0, 2, count)
    federation = Federation.from_inputs(tokens, labels, [range(count)], tokens, labels, class_names=("a", "b"))
    model = Model(Tokens(is_normalized), (5,), input_dtype="int32")
    padding._found.pop(model, None)
    if is_normalized:
        check("padding rows", check_padding, model, federation.train)
    else:
        check_padding(model, federation.train)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])  # many layers, and with shortcuts
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_librarys_networks_would_pass(name, dtype):
    """As if they were a user's: no rounding is taken for padding rows, however deep the network.

    That padding rows change no bit of any network's round is in ``test_network_training.py``.
    """
    model = tiny_model(name, dtype=dtype)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, *model.input_shape), np.uint8)
    federation = Federation.from_arrays(images, np.arange(9) % 4, [range(9)], images, np.arange(9) % 4, 128, 64)
    assert padding._problem(model, federation.train) == ""
