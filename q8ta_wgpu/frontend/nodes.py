"""Properties of the nodes of torch's graphs: operator, arguments, position in the user's model."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from q8ta_wgpu.errors import UnsupportedError, printable
from q8ta_wgpu.frontend.notes import IN_FLOAT, MADE_OF, TRANSFORM, noted
from q8ta_wgpu.importing.import_table import ATEN
from q8ta_wgpu.ir.int8 import Elementwise, Int8, Normalization, PRelu, Product, WeightedSum

_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
"""Prefixes of the paths of torch's own files (not torchvision's) and of this package's."""

QDQ = "quantized_decomposed"
"""The namespace of the operators that quantize and dequantize."""

OWN = "q8ta_wgpu"
"""The namespace of the operators that row_scales.py adds to torch's."""

CONVERSIONS = ("aten._to_copy.default", "aten.to.dtype")
"""Operators that convert numbers to another dtype."""

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Dtypes of integers that a network computes with."""

INPUTS = (torch.float32, torch.bool, torch.int8, *INTEGERS)
"""Dtypes of a network's inputs, unless they are already quantized."""


_WITH_EFFECTS = torch.ops.higher_order.with_effects


def called(node: Node) -> Any:
    """The operator that a node calls. torch wraps operators with effects, such as printing, in one that also takes and
    gives a token, which keeps their order."""
    return node.args[1] if node.target is _WITH_EFFECTS else node.target


def is_effect(node: Node) -> bool:
    """Whether nothing but the token is read of what such a wrapped operator gives."""
    return node.target is _WITH_EFFECTS and not any(user.args[1] and user.users for user in node.users)


def kind(node: Any) -> Int8 | None:
    """The int8 kind of the operator that a node calls."""
    name = str(node.target) if isinstance(node, Node) else ""
    return ATEN[name][0].int8 if name in ATEN else None


def normalizes(node: Node) -> bool:
    """Whether a node is a batch norm."""
    return isinstance(kind(node), Normalization)


def joins(node: Node) -> bool:
    """Whether a node is an activation or clamp that is fused into the weighted sum before it, before rounding."""
    int8 = kind(node)
    return isinstance(int8, PRelu) or (isinstance(int8, Elementwise) and (int8.as_curve or int8.clamp is not None))


def is_weighted(node: Any) -> bool:
    """Whether a node is a convolution or linear, whose batch norm torchao folds itself."""
    return isinstance(kind(node), WeightedSum)


def has_channels(weighted: Node) -> bool:
    """Whether the outputs of a convolution or linear are dimension 1 of its result."""
    return convolves(weighted) or weighted.meta["val"].dim() == 2


def multiplies(node: Node) -> bool:
    """Whether a node is a product of two activations."""
    operands = node.all_input_nodes[:2]
    products = isinstance(kind(node), Product) or str(node.target) in ("aten.matmul.default", "aten.mm.default")
    return products and not any(is_constant(n) for n in operands)


_TRANSFORMS = ("_fft_", "unfold_backward", "col2im", "index_add", "index_put", "scatter_", "upsample_", "_upsample_")
"""Prefixes of operators that frontend/export replaces by weighted sums with constant weights that are not the
network's: Fourier transforms, and sums of windows or rows, and resizing."""


def is_transform(node: Node) -> bool:
    """Whether a node is the weighted sum that replaced such an operator."""
    made = noted(node, TRANSFORM, False) or transforms(node.meta.get("original_aten"))
    return made and isinstance(kind(node), WeightedSum | Product)


def transforms(target: Any) -> bool:
    """Whether an operator of torch is replaced by such a weighted sum."""
    return str(target).removeprefix("aten.").startswith(_TRANSFORMS)


def argument_names(node: Node) -> list[str]:
    """The names of the arguments in the schema of a call's operator."""
    return [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]


def named_arguments(node: Node) -> dict[str, Any]:
    """The arguments of a call, by their names in the schema. Defaults are left out."""
    return dict(zip(argument_names(node), node.args, strict=False)) | node.kwargs


def convolves(node: Node) -> bool:
    """Whether a weighted sum is a convolution."""
    return "groups" in argument_names(node)


def is_transposed(node: Node) -> bool:
    """Whether a call is a transposed convolution, whose weight is (inputs, outputs / groups, ...)."""
    names = argument_names(node)
    return bool(named_arguments(node)["transposed"] if "transposed" in names else "output_padding" in names)


def output_axis(node: Node) -> int:
    """The axis of outputs in the weight of a convolution or linear. A transposed convolution in which each input has an
    output of its own has both along axis 0."""
    arguments = named_arguments(node)
    inputs, outputs = arguments["weight"].meta["val"].shape[:2]
    return int(is_transposed(node) and not (outputs == 1 and arguments.get("groups", 1) == inputs))


def is_float(node: Node) -> bool:
    """Whether a node's value, or the first of its values, is a float32 tensor."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and first.dtype == torch.float32


def other_float(node: Node) -> torch.dtype | None:
    """The float dtype of a call that computes in another one than float32; None for other nodes."""
    dtype: torch.dtype = getattr(node.meta.get("val"), "dtype", torch.float32)
    return dtype if node.op == "call_function" and dtype.is_floating_point and dtype != torch.float32 else None


def is_complex(node: Node) -> bool:
    """Whether a node's value is a complex tensor."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def is_constant(node: Node) -> bool:
    """Whether a node is a parameter or buffer."""
    return node.op == "get_attr"


def constant(module: torch.nn.Module, node: Node) -> torch.Tensor:
    """The value of a parameter or buffer."""
    value: torch.Tensor = operator.attrgetter(str(node.target))(module)
    return value


def origins(node: Node) -> list[str]:
    """The names of the parameters and buffers that a constant was computed from; its own if it is one of them."""
    found: list[str] = noted(node, MADE_OF, [str(node.target)])
    return found


def is_qdq(node: Node) -> bool:
    """Whether a node quantizes or dequantizes, or both."""
    return str(node.target).startswith((f"{QDQ}.", f"{OWN}."))


def quantizes(node: Node) -> bool:
    """Whether a node quantizes float values to integers."""
    return str(node.target).startswith(f"{QDQ}.quantize_per_")


def qdq_dtype(node: Node) -> torch.dtype | None:
    """The dtype of the result of a quantize or dequantize; None for other calls."""
    _, _, name = str(node.target).rpartition(f"{QDQ}.")
    if not name.startswith(("quantize_per_", "dequantize_per_")):
        return None
    arguments = named_arguments(node)
    dtype: torch.dtype | None = arguments["dtype"] if quantizes(node) else arguments.get("out_dtype")
    return dtype or torch.float32


def why_in_float(node: Node) -> str:
    """Why a call stays in float32 whatever its operands are; empty if it need not. Quantizes and dequantizes beside it
    do not count."""
    reason: str = "" if is_qdq(node) else noted(node, IN_FLOAT, "")
    return reason


def integer(dimension: Any) -> int:
    """A dimension as a number. For a symbolic one it is the size with which it was exported.

    Raises UnsupportedError if the size is known only when the model runs.
    """
    if not isinstance(dimension, torch.SymInt):
        return int(dimension)
    if dimension.node.hint is None:
        raise UnsupportedError(
            f"the size {dimension} depends on the values of a tensor, as behind an index of bools: make it a constant, "
            "for instance by an index of the places (mask.nonzero(), computed when the module is made)"
        )
    return int(dimension.node.hint)


def sizes_of(node: Node) -> list[int]:
    """The shape of a node's value, with symbolic sizes as `integer` returns them."""
    return [integer(size) for size in node.meta["val"].shape]


def module_paths(node: Node) -> list[str]:
    """The paths of the modules in which a node was called, outermost first, without that of the whole module."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]


def source_of(node: Node) -> str:
    """The position in the user's model: `module.path (file.py:12)`."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    line = line_of(frames)
    return f"{path} ({line})" if path and line else path or line


def line_of(frames: Iterable[tuple[str, Any]]) -> str:
    """The last of the frames (file and line) that is in the user's code, as `file.py:12`; empty if none is."""
    own = [f for f in frames if not f[0].startswith((*_LIBRARIES, "<"))]  # "<string>" is not a file
    return f"{printable(Path(own[-1][0]).name)}:{own[-1][1]}" if own else ""
