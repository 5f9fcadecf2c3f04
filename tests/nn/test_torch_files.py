"""Initial weights from files of PyTorch: state dicts of ``to_torch`` and of torchvision's ResNets, and other files."""

import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from conftest import assert_close, assert_same_bits, one_line
from safetensors.torch import save_file
from tiny_networks import TINY, batch_of, compiled, tiny_model

from fedjax_collapse import Model, UserError, load_pretrained, nn, save_weights
from fedjax_collapse.config.keys import NETWORKS
from fedjax_collapse.core.records import Variables
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.interchange import torch_networks
from fedjax_collapse.nn.interchange.torch_names import of_torchvision

TOKENS = {name: dict(num_classes=12) for name in ("pfl_transformer", "shakespeare_lstm", "stackoverflow_lstm")}
TOKENS["pfl_transformer"] |= dict(embedding=8, depth=1, heads=2, mlp_width=6)
TORCH = {name: tiny_model(name) for name in TINY}


def drawn(model: Model) -> Variables:
    """Variables of which no two leaves are equal; variances are positive."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype), model.variable_shapes())


def loaded(model: Model, file: Path) -> Variables:
    """What the model starts from, without drawing the rest, which is 0."""
    model = load_pretrained(model, file)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), model.variable_shapes())
    return model.reinitialize(model, zeros, jax.random.key(0))


def state_dict(model: Model, variables: Variables) -> dict[str, torch.Tensor]:
    """Of the network that ``to_torch`` returns."""
    network = torch_networks.twin(model)
    return torch_networks.load(network, torch_networks.arrays_in_order(model, variables)).state_dict()


@pytest.mark.parametrize("name", NETWORKS)
def test_saved_weights_are_loaded(name, tmp_path):
    """Of every network, by its name."""
    model = tiny_model(name) if name in TINY else Model(NETWORKS[name](**TOKENS[name]), (5,), input_dtype="int32")
    save_weights(tmp_path / "weights", variables := drawn(model))
    assert_same_bits(loaded(model, tmp_path / "weights"), variables)


@pytest.mark.parametrize("name", TINY)
def test_to_torch_and_back(name, tmp_path):
    """Every array, from either format; counters of batches are no weights."""
    model = TORCH[name]
    arrays = state_dict(model, variables := drawn(model))
    torch.save(arrays, tmp_path / "net.pt")
    save_file(arrays, tmp_path / "net.safetensors")
    for file in ("net.pt", "net.safetensors"):
        assert_same_bits(loaded(model, tmp_path / file), variables)


WRAPPED = {
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": {f"module.{name}": tensor for name, tensor in state.items()}},
    "parameters": lambda state: {f"_orig_mod.{name}": torch.nn.Parameter(tensor) for name, tensor in state.items()},
    "bfloat16": lambda state: {name: tensor.bfloat16() for name, tensor in state.items()},
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("is_zip", [True, False])
def test_checkpoints(kind, is_zip, tmp_path):
    """State dicts in others, with prefixes of wrappers, in the older format, in half precision."""
    variables = drawn(TORCH["mlp"])
    variables = jax.tree.map(lambda leaf: np.round(leaf * 16) / 16, variables)  # which bfloat16 has
    found = WRAPPED[kind](state_dict(TORCH["mlp"], variables))
    torch.save(found, tmp_path / "net.pth", _use_new_zipfile_serialization=is_zip)
    assert_same_bits(loaded(TORCH["mlp"], tmp_path / "net.pth"), variables)


@pytest.mark.parametrize("change", [dict(num_classes=7), dict(head=nn.heads.ETF), dict(head=nn.heads.TwoHeads)])
def test_another_classifier(change, tmp_path):
    """It stays as it was, and the rest is loaded."""
    variables = drawn(TORCH["mlp"])
    torch.save(state_dict(TORCH["mlp"], variables), tmp_path / "net.pt")
    with pytest.warns(UserWarning, match="net.pt: the classifier keeps its initial weights: "):
        found = loaded(tiny_model("mlp", **change), tmp_path / "net.pt").params
    for layer, arrays in found.items():
        if layer in ("Dense_0", "Dense_1"):
            assert_same_bits(arrays, variables.params[layer])
        else:
            assert not any(leaf.any() for leaf in jax.tree.leaves(arrays))


def test_adapters_are_not_in_the_file(tmp_path):
    variables = drawn(TORCH["mlp"])
    torch.save(state_dict(TORCH["mlp"], variables), tmp_path / "net.pt")
    adapters = LoRA(rank=2, layers=("Dense_1",))
    found = loaded(Model(TORCH["mlp"].module, TORCH["mlp"].input_shape, adapters=adapters), tmp_path / "net.pt").params
    added = {name: found["Dense_1"].pop(name) for name in ("lora_a", "lora_b", "lora_scale")}
    assert not any(leaf.any() for leaf in added.values())
    assert_same_bits(found, variables.params)


class Block(torch.nn.Module):
    """torchvision's, by its names: basic with two convolutions, or a bottleneck with three."""

    def __init__(self, inputs, outputs, stride, bottleneck):
        super().__init__()
        middle = outputs // 4 if bottleneck else outputs
        shapes = [(inputs, middle, 1), (middle, middle, 3), (middle, outputs, 1)]
        shapes = shapes if bottleneck else [(inputs, outputs, 3), (outputs, outputs, 3)]
        self.count = len(shapes)
        for index, (before, after, size) in enumerate(shapes, 1):
            strides = stride if index == self.count - 1 else 1
            self.add_module(f"conv{index}", torch.nn.Conv2d(before, after, size, strides, size // 2, bias=False))
            self.add_module(f"bn{index}", torch.nn.BatchNorm2d(after))
        self.downsample = None
        if (stride, inputs) != (1, outputs):
            conv = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(outputs))

    def forward(self, images):
        outputs = images
        for index in range(1, self.count + 1):
            outputs = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(outputs))
            outputs = outputs.relu() if index < self.count else outputs
        return (outputs + (self.downsample(images) if self.downsample else images)).relu()


class ResNet(torch.nn.Module):
    """torchvision's, without the max-pool."""

    def __init__(self, blocks, bottleneck, width=8, stem=3):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, width, stem, 1, stem // 2, bias=False), torch.nn.BatchNorm2d(width)
        self.stages, inputs = len(blocks), width
        for stage, count in enumerate(blocks):
            made, outputs = [], width * 2**stage * (4 if bottleneck else 1)
            for index in range(count):
                made.append(Block(inputs, outputs, 2 if stage and not index else 1, bottleneck))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", torch.nn.Sequential(*made))
        self.fc = torch.nn.Linear(inputs, 4)

    def forward(self, images):
        images = self.bn1(self.conv1(images)).relu()
        for stage in range(self.stages):
            images = getattr(self, f"layer{stage + 1}")(images)
        return self.fc(images.mean((2, 3)))


@functools.cache
def resnet(blocks=(2, 1), bottleneck=False, stem=3):
    """With weights of which no two tensors are equal."""
    torch.manual_seed(0)
    network = ResNet(blocks, bottleneck, stem=stem).eval()
    for tensor in torch_networks.tensors(network):
        tensor.data.uniform_(0.5, 1.5) if tensor.ndim == 1 else tensor.data.normal_(0, 0.1)
    return network


def our_resnet(kind=nn.ResNet18, blocks=(2, 1), **options):
    strides = (1, *[2] * (len(blocks) - 1))
    module = kind(4, blocks=blocks, strides=strides, width_multiplier=1 / 8, lowering="xla", **options)
    return Model(module, (8, 8, 3))


@pytest.mark.parametrize(("kind", "bottleneck"), [(nn.ResNet18, False), (nn.ResNet50, True)])
def test_torchvisions_resnets(kind, bottleneck, tmp_path):
    """Logits as torchvision's, of every kind of block: with and without a shortcut, of stride 2."""
    torch.save(resnet(bottleneck=bottleneck).state_dict(), tmp_path / "resnet.pth")
    model, batch = our_resnet(kind), batch_of((8, 8, 3), garbage=0)
    arguments = loaded(model, tmp_path / "resnet.pth"), batch
    outputs, _ = compiled(functools.partial(model.apply, train=False), *arguments)(*arguments)
    images = torch.tensor(np.array(batch.inputs)).permute(0, 3, 1, 2)
    assert_close(outputs.logits, resnet(bottleneck=bottleneck)(images).detach().numpy(), 1e-4)


def test_torchvisions_names():
    """Of the published sizes: all of them, and the last."""
    for kind, blocks, count in ((nn.ResNet18, (2, 2, 2, 2), 102), (nn.ResNet18, (3, 4, 6, 3), 182)):
        names = [*of_torchvision(Model(kind(1000, blocks=blocks), (32, 32, 3))).names.values()]
        assert len(set(names)) == len(names) == count and {"layer4.1.bn2.running_var", "fc.bias"} <= set(names)
    names = [*of_torchvision(Model(nn.ResNet50(1000), (32, 32, 3))).names.values()]
    assert len(set(names)) == 267 and "layer3.5.conv3.weight" in names and "layer1.0.downsample.1.weight" in names


def refused(model, file, message):
    """Raises in one line that begins with the file's name."""
    with pytest.raises(UserError, match=message) as error:
        load_pretrained(model, file)
    assert "\n" not in str(error.value) and str(error.value).startswith(str(file)) and len(str(error.value)) < 900


@pytest.mark.filterwarnings("ignore:.*classifier keeps its initial")
@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (our_resnet(), {"stem": 7}, r"of torchvision: wrong conv1.weight \[8, 3, 7, 7\], expected \[8, 3, 3, 3\]; cha"),
        (our_resnet(blocks=(3, 1)), {}, r"of torchvision: missing layer1.2.bn1.running_mean \[8\], .* \(10 in all\);"),
        (our_resnet(norm="none"), {}, r"of to_torch: missing backbone.0.bias \[8\], .*; unexpected bn1.bias \[8\]"),
        (tiny_model("mlp", norm="batch"), {}, r"it holds .* \(4\d in all\); .*, or of save_weights \(network mlp.* ha"),
    ],
)
def test_what_does_not_fit_is_named(model, change, message, tmp_path):
    torch.save(resnet(**change).state_dict(), file := tmp_path / "resnet.pt")
    refused(model, file, message)


@pytest.mark.filterwarnings("ignore:.*classifier keeps its initial")
def test_another_twin_is_named(tmp_path):
    torch.save(state_dict(TORCH["mlp"], drawn(TORCH["mlp"])), file := tmp_path / "net.pt")
    refused(tiny_model("mlp", hidden=(12, 9)), file, r"of to_torch: wrong backbone.3.bias \[8\], expected \[9\], .*")
    refused(
        TORCH["small_cnn"], file, r"missing backbone.1.weight .*unexpected backbone.1.bias|missing .*in all\); unex"
    )


def test_a_max_pool_is_pointed_out(tmp_path):
    """7x7 convolutions of torchvision have one, and 3x3 ones have none."""
    torch.save(resnet(stem=7).state_dict(), tmp_path / "resnet.pt")
    with pytest.warns(
        UserWarning, match="torchvision only with stem_stride=2 and a max-pool after the stem, which the"
    ):
        load_pretrained(our_resnet(stem_size=7), tmp_path / "resnet.pt")


class Trap:
    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


@pytest.mark.filterwarnings("ignore:.*classifier keeps its initial")
def test_code_is_not_run_and_damage_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, message in (
        ({"model": torch.nn.Linear(2, 2)}, "it has a torch.nn.modules.linear.Linear, and objects with code are never"),
        ({"backbone.1.weight": Trap()}, "objects with code are never loaded: save model.state_dict"),
        ([torch.ones(2)], "it holds a list, expected a state dict: save model.state_dict"),
        ({"epoch": 3}, r"of to_torch: missing backbone.1.bias \[12\], .*; change"),
    ):
        torch.save(content, tmp_path / "net.pt")
        refused(TORCH["mlp"], tmp_path / "net.pt", message)
    assert not Path("sprung").exists()
    torch.save(state_dict(TORCH["mlp"], drawn(TORCH["mlp"])), tmp_path / "net.pt")
    whole = (tmp_path / "net.pt").read_bytes()
    middle = len(whole) // 2
    for content in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:4]):
        (tmp_path / "net.pt").write_bytes(content)
        refused(TORCH["mlp"], tmp_path / "net.pt", "not a readable safetensors")
    torch.save({"a": torch.ones(300)}, tmp_path / "net.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "net.pt").read_bytes()
    for content in (whole[:100], whole[:100] + bytes(20) + whole[120:]):
        (tmp_path / "net.pt").write_bytes(content)
        refused(TORCH["mlp"], tmp_path / "net.pt", "not a readable safetensors, npz or PyTorch file")


def test_pytorch_is_not_needed_otherwise(tmp_path, monkeypatch):
    """One line says so, of either format."""
    arrays = state_dict(TORCH["mlp"], variables := drawn(TORCH["mlp"]))
    torch.save(arrays, tmp_path / "net.pt")
    save_file(arrays, tmp_path / "net.safetensors")
    save_weights(tmp_path / "own", variables)
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("torch_files", "torch_networks"):
        monkeypatch.delitem(sys.modules, f"fedjax_collapse.nn.interchange.{module}", raising=False)
    for file in ("net.pt", "net.safetensors"):
        with one_line(r'PyTorch is not installed: pip install "fedjax_collapse.export."'):
            load_pretrained(TORCH["mlp"], tmp_path / file)
    assert_same_bits(loaded(TORCH["mlp"], tmp_path / "own"), variables)
