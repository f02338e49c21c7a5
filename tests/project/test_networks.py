"""The networks that other tests run on are the published ones, and behave like trained ones."""

from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from testbed.blocks import RefineNet, divisible
from testbed.networks import NETWORKS, example_input, transformer, vit_b16

PUBLISHED_PARAMETERS = {
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3": 2_542_856,
    "shufflenet": 2_278_604,
}
EXPECTED_NODES = {
    "resnet50": {"conv2d": 53, "linear": 1, "relu_": 49, "add": 16, "max_pool2d": 1, "adaptive_avg_pool2d": 1},
    "mobilenet_v2": {"conv2d": 52, "linear": 1, "hardtanh_": 35, "add": 10, "adaptive_avg_pool2d": 1},
    "mobilenet_v3": {"conv2d": 52, "linear": 2, "hardswish_": 19, "hardsigmoid": 9, "mul": 9, "add": 6},
    "shufflenet": {"conv2d": 56, "linear": 1, "cat": 16, "chunk": 13, "transpose": 16, "max_pool2d": 1},
    "unet": {"conv2d": 15, "max_pool2d": 3, "upsample_nearest2d": 3, "cat": 3},
    "refinenet": {"conv2d": 13, "pixel_shuffle": 2, "add": 5},
    "subpixel": {"conv2d": 3, "relu_": 2, "pixel_shuffle": 1},
    "linear_chain": {"linear": 5, "relu": 3},
    "transformer": {"linear": 49, "softmax": 12, "layer_norm": 25, "matmul": 24, "gelu": 12, "add": 24},
    "resnet_block": {"conv2d": 6, "relu_": 5, "add": 2},
    "mobilenet_v3_block": {"conv2d": 11, "hardswish_": 5, "hardsigmoid": 2, "relu_": 2, "mul": 2, "add": 1},
}
each_network = pytest.mark.parametrize("name", NETWORKS)


@cache
def network(name: str, width: float = 1.0) -> nn.Module:
    return NETWORKS[name].factory(width)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    assert parameters(network(name)) == PUBLISHED_PARAMETERS[name]


def test_transformer_layers_are_those_of_vit_tiny() -> None:
    patches, positions, head, token, norm = 16 * 16 * 3 * 192 + 192, 197 * 192, 192 * 1000 + 1000, 192, 2 * 192
    embedding = 192 * 192 + 192
    layers = parameters(network("transformer")) - embedding - norm
    assert layers + patches + positions + head + token + norm == 5_717_416


def test_vit_b16_has_the_published_size() -> None:
    norm = 2 * 768
    model = vit_b16(depth=1)
    layer = parameters(model) - norm
    patches, positions, head, token = 16 * 16 * 3 * 768 + 768, 197 * 768, 768 * 1000 + 1000, 768
    assert 12 * layer + norm + patches + positions + head + token == 86_567_656
    with torch.no_grad():
        assert model(torch.zeros(1, 5, 768)).shape == (1, 5, 768)


@each_network
def test_graph_has_the_expected_operators(name: str) -> None:
    graph = torch.export.export(network(name), (example_input(NETWORKS[name].small_shape),)).graph
    counts = Counter(str(node.target).split(".")[1] for node in graph.nodes if "aten." in str(node.target))
    assert {op: counts[op] for op in EXPECTED_NODES[name]} == EXPECTED_NODES[name]


@pytest.mark.parametrize("width", [1.0, 0.25])
@each_network
def test_activations_stay_in_a_healthy_range(name: str, width: float) -> None:
    model, spreads, peaks = network(name, width), list[float](), list[float]()

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        spreads.append(output.std().item())
        peaks.append(output.abs().max().item())

    hooks = [module.register_forward_hook(note) for module in model.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            for seed, shape in enumerate((NETWORKS[name].shape, NETWORKS[name].small_shape), 1):
                assert model(example_input(shape, seed)).isfinite().all()
    finally:
        for hook in hooks:
            hook.remove()
    assert min(spreads) > 0.02  # a gate of a few channels varies least
    assert max(spreads) < 5
    assert max(peaks) < 60


@each_network
def test_seed_alone_decides_the_weights(name: str) -> None:
    factory, before = NETWORKS[name].factory, torch.random.get_rng_state()
    one, same, other = (factory(0.25, seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], same[key]) for key in one)
    drawn = [key for key in one if not key.endswith("num_batches_tracked")]
    assert not any(torch.equal(one[key], other[key]) for key in drawn)


@each_network
def test_is_in_eval_mode_with_measured_batch_norms(name: str) -> None:
    model = network(name)
    assert not any(module.training for module in model.modules())
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        assert norm.momentum == 0.1
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.running_mean.std() > 1e-3
        assert norm.running_var.std() > 1e-3
        assert norm.running_var.min() > 0


@each_network
def test_slim_version_is_smaller_and_keeps_the_output_rank(name: str) -> None:
    slim, full = network(name, 0.25), network(name)
    x = example_input(NETWORKS[name].small_shape)
    assert parameters(slim) < parameters(full) / 3
    with torch.no_grad():
        assert slim(x).dim() == full(x).dim()


@each_network
def test_batch_of_two_is_two_batches_of_one(name: str) -> None:
    model = network(name, 0.25)
    x = torch.cat([example_input(NETWORKS[name].small_shape, seed) for seed in (1, 2)])
    half = len(x) // 2
    with torch.no_grad():
        torch.testing.assert_close(model(x), torch.cat((model(x[:half]), model(x[half:]))), rtol=1e-4, atol=1e-4)


def test_refinenet_has_four_residual_blocks() -> None:
    model = network("refinenet")
    assert isinstance(model, RefineNet)
    assert len(model.blocks) == 4


def test_transformer_depth() -> None:
    assert parameters(transformer(depth=2)) < parameters(transformer(depth=3))


@pytest.mark.parametrize(("channels", "expected"), [(1, 8), (11, 16), (12, 16), (18, 24), (36, 40), (72, 72), (60, 64)])
def test_divisible(channels: int, expected: int) -> None:
    assert divisible(channels) == expected


@pytest.mark.parametrize("shape", [(3, 64), (1, 17, 192), (2, 3, 16, 16), (1, 1, 1, 9), (1, 3, 31, 5)])
def test_example_input(shape: tuple[int, ...]) -> None:
    x = example_input(shape, 3)
    assert x.shape == shape
    assert torch.equal(x, example_input(shape, 3))
    assert not torch.equal(x, example_input(shape, 4))
    assert 0.8 < x.std() < 1.2
