"""Functions for importers of ONNX calls: operators that equal one of aten, inputs that must be constants, windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from q8ta_wgpu.importing.builder import Builder, Import
from q8ta_wgpu.ir.graph import Array


def by_aten(name: str, *operands: str, **arguments: Any) -> Import:
    """The importer of an ONNX operator that equals an aten one.

    Args:
        name: aten overload name.
        operands: names of aten's arguments for the ONNX inputs, in order.
        arguments: aten's other arguments.
    """
    return lambda b, args: b.aten(name, {**dict(zip(operands, args["inputs"], strict=False)), **arguments})


def constant(b: Builder, value: str | None, what: str) -> Array | None:
    """The array of an input that must be a constant, named `what` in the message; None where the input is left out.
    Raises the builder's refusal if the value depends on an input of the network."""
    if value is None:
        return None
    array = b.array(value)
    if array is None:
        raise b.refuse(f"its {what} is computed while the network runs: it must be a constant")
    return array


def integers(b: Builder, args: Mapping[str, Any], position: int, name: str) -> list[int] | None:
    """Integers that are an input at `position`, or in older opsets an attribute `name`; None where they are left
    out. Raises the builder's refusal if the input is no constant."""
    inputs = args["inputs"]
    if args.get(name) is not None:
        found = args[name]
        return [int(found)] if isinstance(found, int) else [int(n) for n in found]
    array = constant(b, inputs[position] if position < len(inputs) else None, name)
    return None if array is None else [int(n) for n in array.reshape(-1)]


def number(b: Builder, value: str | None, what: str, default: float | None = None) -> float | None:
    """The number of an input with one element; `default` where it is left out. Raises the builder's refusal if it is no
    constant or has more elements."""
    array = constant(b, value, what)
    if array is None:
        return default
    if array.size != 1:
        raise b.refuse(f"its {what} must be one number, found shape {array.shape}")
    return float(array.reshape(()))


def axes(b: Builder, args: Mapping[str, Any], rank: int, position: int = 1) -> list[int] | None:
    """The dimensions `axes` of a call, as non-negative indices; None where they are left out. `position` is the input
    that newer opsets have for them. Raises the builder's refusal if one is out of range."""
    found = integers(b, args, position, "axes")
    if found is not None and (wrong := [d for d in found if not -rank <= d < rank]):
        raise b.refuse(f"its axis {wrong[0]} is none of its {rank} dimensions")
    return None if found is None else [d % rank for d in found]


def axis(b: Builder, args: Mapping[str, Any], rank: int) -> int:
    """The attribute `axis` as a non-negative index. Raises the builder's refusal if it is out of range."""
    found = int(args["axis"])
    if not -rank <= found < max(rank, 1):
        raise b.refuse(f"its axis {found} is none of its {rank} dimensions")
    return found % max(rank, 1)


def window(b: Builder, args: Mapping[str, Any], kernel: list[int], size: tuple[int, ...]) -> dict[str, list[int]]:
    """Attributes of a convolution or pooling.

    Args:
        args: the call's attributes: strides, dilations, pads and auto_pad.
        kernel: extents of the kernel.
        size: extents of the input, without batch and channels.

    Returns:
        Lists `stride`, `dilation` and `pads`. `pads` has the padding before each dimension, then after each.

    Raises the builder's refusal if lengths differ, a number is below 1, or auto_pad is unknown.
    """
    rank = len(kernel)
    stride = list(args.get("strides") or [1] * rank)
    dilation = list(args.get("dilations") or [1] * rank)
    pads = list(args.get("pads") or [0] * (2 * rank))
    mode = args.get("auto_pad") or "NOTSET"
    if len(size) != rank or len(stride) != rank or len(dilation) != rank or len(pads) != 2 * rank:
        raise b.refuse(f"its kernel {kernel}, strides {stride}, dilations {dilation} and pads {pads} differ in length")
    if min(*stride, *dilation, *kernel) < 1:
        raise b.refuse(f"its kernel {kernel}, strides {stride} and dilations {dilation} must be at least 1")
    if mode == "VALID":
        pads = [0] * (2 * rank)
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, s, k, d in zip(size, stride, kernel, dilation, strict=True)
        ]
        less = [t // 2 for t in totals]
        more = [t - n for t, n in zip(totals, less, strict=True)]
        pads = less + more if mode == "SAME_UPPER" else more + less
    elif mode != "NOTSET":
        raise b.refuse(f"its auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {mode!r}")
    return {"stride": stride, "dilation": dilation, "pads": pads}
