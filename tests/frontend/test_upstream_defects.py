"""What ExecuTorch's Vulkan backend gets wrong or refuses in statically quantized graphs, one test for each letter of
the list this project keeps. Every one compiles to int8, runs equal to the reference, and agrees with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.pt2e.annotations import Annotations
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.runtime.device import Device
from testbed.harness import parts, rounding, stages_of
from tests.quantizing import Plain, check, conv, data, ops


def test_a_relu_after_add_is_kept(vulkan: Device) -> None:
    module = Plain(lambda s, x: s.head(F.relu(s.a(x) + s.b(x))), a=conv(4, 8), b=conv(4, 8), head=conv(8, 4))
    model = check(module, [data(1, 4, 7, 7)], vulkan)
    add = next(node for node in model.graph.nodes if stages_of(node) == "residual requantize")
    q = model.graph.types[add.output].q
    assert q is not None
    assert rounding(add).lo == q.zero


@pytest.mark.parametrize("alpha", [2, -3, 0.5])
def test_b_alpha(vulkan: Device, alpha: float) -> None:
    check(
        Plain(lambda s, x: torch.add(s.a(x), s.b(x), alpha=alpha), a=conv(3, 8), b=conv(3, 8)),
        [data(1, 3, 6, 6)],
        vulkan,
    )


def test_b_alpha_changes_the_result(vulkan: Device) -> None:
    one, two = (
        check(Plain(lambda s, x, k=k: torch.add(x, x * x, alpha=k)), [data(1, 3, 6, 6)], vulkan) for k in (1, 3)
    )
    x = data(1, 3, 6, 6).numpy()
    assert not np.allclose(q8.Session(one, vulkan)(x), q8.Session(two, vulkan)(x))


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8, 1, 1), (1, 1, 6, 6), (6,)])
def test_c_broadcast_add(vulkan: Device, shape: tuple[int, ...]) -> None:
    check(Plain(lambda s, x, y: s.a(x) + y, a=conv(3, 8)), [data(2, 3, 6, 6), data(*shape)], vulkan)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("kernel", [3, (4, 2)])
def test_padding_same(vulkan: Device, kernel: Any) -> None:
    """Even kernels are padded by one more behind than before."""
    middle = nn.Conv2d(8, 6, kernel, padding="same", dilation=(1, 2))
    model = check(
        Plain(lambda s, x: s.b(s.m(s.a(x))), a=conv(3, 8), m=middle, b=conv(6, 4)), [data(1, 3, 6, 7)], vulkan
    )
    assert not model.report().float32


def test_d_grouped_pointwise(vulkan: Device) -> None:
    check(Plain(lambda s, x: s.b(s.a(x)), a=conv(3, 12), b=conv(12, 24, 1, groups=3)), [data(1, 3, 5, 5)], vulkan)


def test_e_depthwise_with_odd_channels(vulkan: Device) -> None:
    check(Plain(lambda s, x: s.b(s.a(x)), a=conv(3, 7), b=conv(7, 7, groups=7)), [data(1, 3, 5, 5)], vulkan)


def test_e_depthwise_with_multiplier(vulkan: Device) -> None:
    check(Plain(lambda s, x: s.b(s.a(x)), a=conv(3, 5), b=conv(5, 15, groups=5)), [data(1, 3, 5, 5)], vulkan)


class PerTensorWeights(Quantizer):
    """Our quantizer with one scale for a whole weight."""

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Writes annotations."""
        from torchao.quantization.pt2e import MinMaxObserver

        annotations = Annotations(model)
        annotations.weight = QuantizationSpec(
            dtype=torch.int8,
            quant_min=-127,
            quant_max=127,
            qscheme=torch.per_tensor_symmetric,
            observer_or_fake_quant_ctr=MinMaxObserver.with_args(eps=2.0**-30),
        )
        annotations.write()
        return model


def test_f_per_tensor_weights(vulkan: Device) -> None:
    module = Plain(lambda s, x: s.l(s.a(x).flatten(1)), a=conv(3, 8), l=nn.Linear(8 * 25, 6))
    model = check(module, [data(1, 3, 5, 5)], vulkan, PerTensorWeights())
    assert {"q8ta_conv2d", "q8ta_linear"} <= set(ops(model))


def test_g_conv1d(vulkan: Device) -> None:
    module = Plain(lambda s, x: s.b(s.a(x)), a=nn.Conv1d(3, 8, 5, 2, 2), b=nn.Conv1d(8, 6, 3, dilation=2, groups=2))
    model = check(module, [data(2, 3, 33)], vulkan)
    assert ops(model).count("q8ta_conv2d") == 2


def test_h_batches(vulkan: Device) -> None:
    check(Plain(lambda s, x: s.b(s.a(x)), a=conv(3, 8), b=conv(8, 8, groups=8)), [data(3, 3, 6, 6)], vulkan)


@pytest.mark.parametrize("shape", [(2, 3, 16), (3, 1, 16), (2, 2, 3, 16)])
def test_i_linear_with_leading_dimensions(vulkan: Device, shape: tuple[int, ...]) -> None:
    check(Plain(lambda s, x: s.l(x), l=nn.Linear(16, 10)), [data(*shape)], vulkan)


def test_j_relu_with_several_users(vulkan: Device) -> None:
    def forward(s: Any, x: Tensor) -> Any:
        y = F.relu(s.a(x))
        return s.b(y) + s.c(y) + y

    check(Plain(forward, a=conv(3, 8), b=conv(8, 8), c=conv(8, 8, 1)), [data(1, 3, 6, 6)], vulkan)


def test_k_shared_weight(vulkan: Device) -> None:
    model = check(Plain(lambda s, x: s.a(F.relu(s.a(x))), a=conv(4, 4)), [data(1, 4, 6, 6)], vulkan)
    convolutions = [node for node in model.graph.nodes if parts(node)[0] == "q8ta_conv2d"]
    assert len(convolutions) == 2


class NarrowRange(Quantizer):
    """Our quantizer with activations in [-100, 90] and weights in [-8, 7]."""

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Writes annotations."""
        from torchao.quantization.pt2e import HistogramObserver

        spec = QuantizationSpec(
            dtype=torch.int8,
            quant_min=-100,
            quant_max=90,
            qscheme=torch.per_tensor_affine,
            observer_or_fake_quant_ctr=HistogramObserver.with_args(eps=2.0**-30),
        )
        annotations = Annotations(model)
        annotations.activation = lambda storage: spec
        annotations.weight = replace(annotations.weight, quant_min=-8, quant_max=7)
        annotations.write()
        return model


def test_l_narrow_ranges(vulkan: Device) -> None:
    model = check(nn.Sequential(conv(3, 8), conv(8, 3)), [data(1, 3, 6, 6)], vulkan, NarrowRange())
    node = next(node for node in model.graph.nodes if parts(node)[0] == "q8ta_conv2d")
    assert rounding(node) == Requantize(-100, 90)


def test_m_groups_of_conv2d_are_read(vulkan: Device) -> None:
    model = check(Plain(lambda s, x: s.a(x), a=conv(6, 6, groups=3)), [data(1, 6, 6, 6)], vulkan)
    assert next(node for node in model.graph.nodes if parts(node)[0] == "q8ta_conv2d").attrs["groups"] == 3


def test_n_views_and_permutes_do_not_block_fusion(vulkan: Device) -> None:
    def forward(s: Any, x: Tensor) -> Any:
        y = s.a(x).permute(0, 2, 3, 1).clone()
        y = s.l(y)
        return s.b(y.permute(0, 3, 1, 2).contiguous())

    check(Plain(forward, a=conv(3, 8), l=nn.Linear(8, 12), b=conv(12, 4)), [data(2, 3, 5, 6)], vulkan)


def test_o_output_quantized_twice(vulkan: Device) -> None:
    """One convolution's float result feeds two quantizes of different scales: each is computed from the sum itself."""

    class TwoScales(Quantizer):
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            super().annotate(model)
            for node in model.graph.nodes:
                annotation = node.meta.get("quantization_annotation")
                if annotation is not None and "conv2d" in node.name and not node.name.endswith(("_1", "_2")):
                    annotation.output_qspec = None
            return model

    def forward(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = s.a(x)
        return s.b(y), s.c(y)

    check(Plain(forward, a=conv(3, 8), b=conv(8, 4), c=conv(8, 4)), [data(1, 3, 6, 6)], vulkan, TwoScales())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: torch.clamp(x, -0.3, 0.8),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_p_activations(vulkan: Device, name: str) -> None:
    module = Plain(lambda s, x: s.b(ACTIVATIONS[name](s.a(x))), a=conv(3, 8), b=conv(8, 4))
    assert set(ops(check(module, [data(1, 3, 6, 6)], vulkan))) <= {"q8ta_conv2d", "q8ta_table"}


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "sub": lambda x: x - x.flip(0),
    "mul": lambda x: x * torch.sigmoid(x),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "mean": lambda x: x.mean((2, 3), keepdim=True),
    "cat": lambda x: torch.cat([x[:, :5], x[:, 3:6]], 1),
    "chunk": lambda x: torch.cat(list(x.chunk(2, 1))[::-1], 1),
    "transpose": lambda x: x.transpose(2, 3),
    "reshape": lambda x: x.reshape(x.shape[0], 8, -1, 1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "upsample": lambda x: F.interpolate(x, scale_factor=2),
    "shuffle": lambda x: F.pixel_shuffle(torch.cat([x, x], 1), 4).expand(-1, 8, -1, -1),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_q_operators_between_convolutions(vulkan: Device, name: str) -> None:
    module = Plain(lambda s, x: s.b(BETWEEN[name](s.a(x))), a=conv(3, 8), b=conv(8, 4, 1))
    report = check(module, [data(2, 3, 8, 8)], vulkan).report()
    assert report.float32 == {}, str(report)


class FloatHead(Quantizer):
    """Our quantizer, but nothing is quantized after the last linear."""

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        super().annotate(model)
        last = [node for node in model.graph.nodes if "linear" in str(node.target)][-1]
        last.meta["quantization_annotation"].output_qspec = None
        return model


def test_r_float_head(vulkan: Device) -> None:
    module = Plain(lambda s, x: s.b(F.relu(s.a(x))), a=nn.Linear(12, 9), b=nn.Linear(9, 5))
    model = check(module, [data(3, 12)], vulkan, FloatHead())
    assert ops(model) == ["q8ta_linear", "q8ta_linear"]
    assert stages_of(model.graph.nodes[-1]) == "scale"
    x = data(3, 12)
    exact = module(x).detach().numpy()
    assert np.abs(q8.Session(model, vulkan)(x) - exact).max() < 0.1 * np.abs(exact).max()


def test_batch_norm_before_a_convolution(vulkan: Device) -> None:
    """Pre-activation networks: batch norm and relu in front of the convolution, nothing to fold into."""
    norm = nn.BatchNorm2d(8)
    norm.running_mean, norm.running_var = data(8), data(8, seed=2).abs() + 0.2
    module = Plain(lambda s, x: s.b(F.relu(s.bn(s.a(x) * s.a(x)))), a=conv(3, 8), b=conv(8, 4), bn=norm)
    model = check(module, [data(1, 3, 6, 6)], vulkan)
    assert model.report().float32 == {}, str(model.report())
