"""Graphs of other PT2E quantizers: XNNPACK style, X86Inductor style, QAT, unfolded weights, core ATen linears."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.runtime.device import Device
from testbed import networks
from testbed.harness import flat, parts, rounding, stages_of
from tests import simulation
from tests.quantizing import Plain, conv, data, ops

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e import move_exported_model_to_eval, qat_utils
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack


def xnnpack_quantizer(per_channel: bool = True) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "deprecated", but what ExecuTorch's users have
        quantizer = xnnpack.XNNPACKQuantizer()
    return quantizer.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel))


def x86_quantizer() -> Any:
    return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())


def convert(module: nn.Module, inputs: Sequence[Tensor], quantizer: Any, fold: bool = True) -> torch.fx.GraphModule:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(module.eval(), tuple(inputs)).module(), quantizer)
        prepared(*inputs)
        prepared(*(t * 0.8 for t in inputs))
        converted: torch.fx.GraphModule = convert_pt2e(prepared, fold_quantize=fold)
        return converted


def check(module: nn.Module, inputs: Sequence[Tensor], device: Device, quantizer: Any, fold: bool = True) -> q8.Model:
    """Quantizes with a foreign quantizer, compiles; the device equals the reference, operators agree with torch."""
    converted = convert(module, inputs, quantizer, fold)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(converted, tuple(inputs))
    return compare(program, inputs, device)


def compare(program: torch.export.ExportedProgram, inputs: Sequence[Tensor], device: Device) -> q8.Model:
    model = q8.compile(program)
    arrays = dict(zip(model.graph.inputs, (t.numpy() for t in inputs), strict=True))
    with q8.Session(model, device) as session:
        found = flat(session(**arrays))
    expected = flat(q8.Session(model, "reference")(**arrays))
    for f, e in zip(found, expected, strict=True):
        if model.report().exact:
            assert int((f != e).sum()) == 0
        else:
            np.testing.assert_allclose(f, e, atol=0.05 * np.abs(e).max())
    with torch.no_grad():
        simulated = flat_tensors(program.module(check_guards=False)(*inputs))
    for f, s in zip(found, simulated, strict=True):
        assert np.abs(f - s).mean() <= 0.05 * np.abs(s).max()
    for c in simulation.compare(program, model, arrays):
        assert c.largest <= 1, c
        assert c.equal >= 0.999 or c.op == "quantize", c  # of a float value, which has a tolerance
    return model


def flat_tensors(outputs: Any) -> list[np.ndarray]:
    return [t.numpy() for t in pytree.tree_flatten(outputs)[0]]


def test_xnnpack_residual_block(vulkan: Device) -> None:
    model = check(networks.resnet_block(), [data(1, 3, 16, 16)], vulkan, xnnpack_quantizer())
    assert model.report().float32 == {}


@pytest.mark.parametrize("inplace", [False, True])
def test_xnnpack_relu6_folds_into_the_convolution(vulkan: Device, inplace: bool) -> None:
    """conv -> q/dq -> hardtanh -> q/dq with one scale: a range of the convolution, no node of its own."""
    torch.manual_seed(0)  # of 648 elements none may lie at a tie, where PyTorch's own sums decide
    module = nn.Sequential(conv(3, 8), nn.ReLU6(inplace), conv(8, 4))
    model = check(module, [data(1, 3, 9, 9) * 4], vulkan, xnnpack_quantizer())
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv2d"]


def test_xnnpack_per_tensor_weights(vulkan: Device) -> None:
    module = nn.Sequential(conv(3, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    model = check(module, [data(1, 3, 6, 6)], vulkan, xnnpack_quantizer(per_channel=False))
    assert model.report().float32 == {}


@pytest.mark.parametrize(("groups", "per_channel"), [(8, True), (8, False), (2, False), (1, False)])
def test_xnnpack_transposed_convolution(vulkan: Device, groups: int, per_channel: bool) -> None:
    module = nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, groups=groups), nn.ReLU(), conv(8, 4))
    model = check(module, [data(1, 3, 5, 6)], vulkan, xnnpack_quantizer(per_channel))
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv_transpose2d", "q8ta_conv2d"]


@pytest.mark.parametrize("groups", [1, 2])
def test_xnnpack_scales_along_the_inputs_of_a_transposed_convolution(vulkan: Device, groups: int) -> None:
    """XNNPACK's scales follow axis 0, the inputs: one sum would mix them, so it stays in float, and is reported."""
    module = nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 8, 3, 2, groups=groups), conv(8, 4))
    model = check(module, [data(1, 3, 5, 6)], vulkan, xnnpack_quantizer())
    assert "conv_transpose2d" in ops(model)
    assert any("conv_transpose2d stays in float32" in note for note in model.report().notes), model.report().notes


def test_transposed_unfolded_weights(vulkan: Device) -> None:
    module = nn.Sequential(conv(3, 8), nn.ConvTranspose2d(8, 6, 3, 2, groups=2), nn.ReLU(), conv(6, 4))
    model = check(module, [data(1, 3, 5, 6)], vulkan, Quantizer(), fold=False)
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv_transpose2d", "q8ta_conv2d"]


def test_xnnpack_chain_of_linears(vulkan: Device) -> None:
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7), nn.Linear(7, 9))
    model = check(module, [data(4, 12)], vulkan, xnnpack_quantizer())
    assert ops(model) == ["q8ta_linear"] * 3


def test_xnnpack_unfolded_weights(vulkan: Device) -> None:
    """fold_quantize=False leaves quantize nodes on float weights: they are computed at import."""
    module = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4))
    model = check(module, [data(1, 3, 6, 6)], vulkan, xnnpack_quantizer(), fold=False)
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv2d"]


def test_xnnpack_scalars_become_tables(vulkan: Device) -> None:
    module = Plain(lambda s, x: s.b(s.a(x) * 2.0 + 1.5), a=conv(3, 8), b=conv(8, 4))
    model = check(module, [data(1, 3, 6, 6)], vulkan, xnnpack_quantizer())
    assert model.report().islands == ()


def test_x86_residual_block_joins_before_rounding(vulkan: Device) -> None:
    """conv + add + relu with no quantize in between: one dispatch, the residual in the epilogue."""
    model = check(networks.resnet_block(), [data(1, 3, 16, 16)], vulkan, x86_quantizer())
    assert "residual requantize" in map(stages_of, model.graph.nodes)
    assert model.report().islands == ()


def test_x86_mobilenet_v3_block(vulkan: Device) -> None:
    """conv + hardswish with no quantize in between: the activation is a curve in the convolution's epilogue."""
    model = check(networks.mobilenet_v3_block(), [data(1, 3, 16, 16)], vulkan, x86_quantizer())
    assert "curve requantize" in map(stages_of, model.graph.nodes)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU])
def test_x86_activations(vulkan: Device, activation: type[nn.Module]) -> None:
    module = nn.Sequential(conv(3, 8), activation(), conv(8, 4), nn.Flatten(), nn.Linear(4 * 49, 6))
    model = check(module, [data(1, 3, 7, 7)], vulkan, x86_quantizer())
    found = ops(model)
    assert "q8ta_conv2d" in found
    assert stages_of(model.graph.nodes[-1]) == "scale"


def test_qat_of_a_transposed_convolution(vulkan: Device) -> None:
    torch.manual_seed(0)
    x = data(2, 3, 6, 6)
    module = nn.Sequential(conv(3, 8), nn.ReLU(), nn.ConvTranspose2d(8, 6, 4, 2, 1), nn.ReLU(), conv(6, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(module.train(), (x,)).module(check_guards=False)
        prepared = prepare_qat_pt2e(exported, Quantizer(qat=True))
        prepared(x).square().mean().backward()
        move_exported_model_to_eval(prepared)
        program = torch.export.export(convert_pt2e(prepared), (x,))
    model = compare(program, [x], vulkan)
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv_transpose2d", "q8ta_conv2d"]


def test_qat(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    fold = qat_utils._fold_conv_bn_qat_helper

    def fold_conv2d(model: torch.fx.GraphModule, function: Any, *rest: Any, **options: Any) -> torch.fx.GraphModule:
        """The other three kinds of convolution, torchao traces 24 patterns for each, are not in this module."""
        folded: torch.fx.GraphModule = fold(model, function, *rest, **options) if function is F.conv2d else model
        return folded

    monkeypatch.setattr(qat_utils, "_fold_conv_bn_qat_helper", fold_conv2d)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c1, self.bn, self.c2 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), conv(8, 8)
            self.fc = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.c2(F.relu(self.bn(self.c1(x)))))
            y: Tensor = self.fc(x.mean((2, 3)))
            return y

    torch.manual_seed(0)
    x = data(4, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Net().train(), (x,)).module(check_guards=False)
        prepared = prepare_qat_pt2e(exported, Quantizer(qat=True))
        optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            prepared(x).square().mean().backward()
            optimizer.step()
        move_exported_model_to_eval(prepared)
        program = torch.export.export(convert_pt2e(prepared), (x,))
    model = compare(program, [x], vulkan)
    assert model.report().float32 == {}


def test_factors_and_terms_of_channels_are_one_operator_where_ours_rounded_them_as_one() -> None:
    """What another quantizer left in float32 between two values became one int8 operator, too."""
    torch.manual_seed(0)
    mean, deviation = torch.randn(8, 1, 1), torch.rand(8, 1, 1) + 0.5
    module = Plain(lambda s, x: s.last((s.first(x) - mean) / deviation), first=conv(3, 8), last=conv(8, 4))
    x = data(1, 3, 6, 6)
    for quantizer, wanted in (
        (Quantizer(), ["q8ta_conv2d", "q8ta_conv2d"]),  # the batch norm joins the sum
        (xnnpack_quantizer(), ["q8ta_conv2d", "add", "div", "q8ta_conv2d"]),
    ):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(convert(module, [x], quantizer), (x,))
            torch.export.save(program, file := io.BytesIO())
            file.seek(0)
            model = q8.compile(torch.export.load(file))
        found = [node.op for node in model.graph.nodes if node.op not in ("quantize", "dequantize")]
        assert found == wanted, (found, quantizer)


def test_core_aten_linears(vulkan: Device) -> None:
    """A program decomposed to core ATen holds addmm(bias, x, permute(weight)), mm and views instead of linear."""
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7, bias=False))
    for shape in ((4, 12), (2, 3, 12)):
        x = data(*shape)
        converted = convert(module, [x], Quantizer())
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(converted, (x,)).run_decompositions()
        names = {str(node.target) for node in program.graph.nodes}
        assert {"aten.addmm.default", "aten.mm.default"} <= names
        model = compare(program, [x], vulkan)
        assert model.report().islands == ()
        assert ops(model).count("q8ta_linear") == 2


def test_converted_module_with_its_guards_is_accepted(vulkan: Device) -> None:
    x = data(1, 3, 6, 6)
    converted = convert(nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4)), [x], Quantizer())
    assert any("_guards_fn" in node.name for node in converted.graph.nodes)
    model = q8.compile(converted)
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv2d"]


def test_weights_with_a_zero_point_are_int8() -> None:
    """A zero point other than 0 is taken out of the sums exactly: within a step of torch's simulation."""
    x = data(1, 3, 6, 6)
    converted = convert(nn.Sequential(conv(3, 8), conv(8, 4)), [x], Quantizer())
    for name, buffer in converted.named_buffers():
        if name.startswith("_zero_point_0"):
            buffer.add_(3)
    model = q8.compile(converted)
    assert model.report().exact and not model.report().float32
    found, exact = q8.Session(model, "reference")(x), converted(x).detach().numpy()
    assert float(np.abs(found - exact).max()) < 0.02 * float(np.abs(exact).max())


def test_relu_whose_zero_point_is_not_the_minimum(vulkan: Device) -> None:
    """X86-like graphs quantize a relu's result in a range that reaches below zero: the clamp must stay."""

    class Wide(Quantizer):
        def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            super().annotate(model)
            from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec

            spec = FixedQParamsQuantizationSpec(
                dtype=torch.int8,
                scale=0.05,
                zero_point=-20,
                quant_min=-128,
                quant_max=127,
                qscheme=torch.per_tensor_affine,
            )
            for node in model.graph.nodes:
                if "relu" in str(node.target):
                    node.meta["quantization_annotation"].output_qspec = spec
            return model

    model = check(nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 4)), [data(1, 3, 6, 6)], vulkan, Wide())
    first = next(node for node in model.graph.nodes if parts(node)[0] == "q8ta_conv2d")
    assert rounding(first).lo == -20


def test_a_module_that_still_observes_is_refused_and_unharmed() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).eval(), data(1, 3, 5, 5)
    prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), Quantizer())
    prepared(x)
    with pytest.raises(q8.UnsupportedError, match=r"still observes values .*: call torchao's convert_pt2e"):
        q8.compile(prepared)
    assert q8.compile(convert_pt2e(prepared)).report().exact
