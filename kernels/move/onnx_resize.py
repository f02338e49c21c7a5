"""ONNX's Resize and Upsample: our operators where they have its rule, else indices or weights of each dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.op import MAX_EXTENT, Builder
from q8ta_wgpu.kernels.lib import onnx_calls

MOST_WEIGHTS = 1 << 26
"""Most weights of a dimension that is resized: those of 8,192 places of as many."""


def resize(b: Builder, args: Mapping[str, Any]) -> str:
    """The importer: nearest as a choice of elements, linear and cubic as weighted sums of them."""
    x, *given = args["inputs"]
    shape, mode = b.type(x).shape, args.get("mode") or "nearest"
    axes = onnx_calls.axes(b, {"inputs": [x], "axes": args.get("axes")}, len(shape))
    axes = list(range(len(shape))) if axes is None else axes
    scales, sizes = _factors(b, args, [shape[d] for d in axes], given)
    if args.get("antialias") or args.get("exclude_outside"):
        raise b.refuse("antialias and exclude_outside are not supported")
    rule = args.get("coordinate_transformation_mode") or "half_pixel"
    if args["operator"] == "Upsample":
        rule = "asymmetric"
    changed = [(d, s, n) for d, s, n in zip(axes, scales, sizes, strict=True) if n != shape[d] or s != 1]
    if mode == "linear" and rule in _CORNERS and changed and {d for d, _, _ in changed} <= {2, 3} and len(shape) == 4:
        by = {d: (n, n) for d, _, n in changed if n != 1 and shape[d] * scales[axes.index(d)] == n}
        if len(by) == len(changed):
            made = [by[d][0] if d in by else shape[d] for d in (2, 3)]
            call = {"self": x, "output_size": made, "scales_h": None, "scales_w": None}
            return str(b.aten("aten.upsample_bilinear2d.default", {**call, "align_corners": _CORNERS[rule]}))
    if mode == "nearest" and (repeats := _repeats(b, args, changed, shape, rule)):
        return b.emit("upsample_nearest", (x,), {"scale": repeats, "size": (0, 0), "exact": False})
    for dim, scale, size in changed:
        at = _places(b, rule, shape[dim], size, scale)
        if mode == "nearest":
            index = b.constant(_nearest(at, args, shape[dim]), "index")
            x = b.aten("aten.index_select.default", {"self": x, "dim": dim, "index": index})
        elif mode in ("linear", "cubic"):
            sharp = args.get("cubic_coeff_a")
            if at.size * shape[dim] > MOST_WEIGHTS:
                raise b.refuse(f"it makes {at.size} places of {shape[dim]}: {MOST_WEIGHTS} weights at most")
            x = _weighted(
                b, x, dim, _weights(at, shape[dim], None if mode == "linear" else -0.75 if sharp is None else sharp)
            )
        else:
            raise b.refuse(f"its mode must be nearest, linear or cubic, found {mode!r}")
    return str(x)


_CORNERS = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
"""Rules of places that upsample_bilinear has, and whether corners are aligned."""


def _factors(
    b: Builder, args: Mapping[str, Any], shape: Sequence[int], given: Sequence[str | None]
) -> tuple[list[float], list[int]]:
    """The factor and the size of each dimension."""
    scales = onnx_calls.constant(b, given[-1 if len(given) < 2 else 1] if given else None, "scales")
    if args.get("scales") is not None:
        scales = np.asarray(args["scales"], np.float32)
    sizes = onnx_calls.constant(b, given[2] if len(given) > 2 else None, "sizes")
    found = sizes if sizes is not None and sizes.size else scales
    if found is None or found.size != len(shape):
        raise b.refuse(f"it needs scales or sizes of its {len(shape)} dimensions")
    if sizes is None or not sizes.size:
        factors = [float(f) for f in found.reshape(-1)]
        whole = [int(np.floor(n * f)) if np.isfinite(f) else 0 for n, f in zip(shape, factors, strict=True)]
    else:
        whole = [int(n) for n in found.reshape(-1)]
        factors = [n / old for n, old in zip(whole, shape, strict=True)]
        policy = args.get("keep_aspect_ratio_policy") or "stretch"
        if policy != "stretch":
            factor = (min if policy == "not_larger" else max)(factors)
            factors = [factor] * len(shape)
            whole = [int(np.floor(n * factor + 0.5)) for n in shape]
    if any(not 1 <= n <= MAX_EXTENT for n in whole):
        raise b.refuse(f"its result would have the sizes {whole}: 1 to {MAX_EXTENT} are supported")
    return factors, whole


def _places(b: Builder, rule: str, old: int, new: int, scale: float) -> Array:
    """Where each element of the result lies among those of the operand."""
    at, length = np.arange(new, dtype=np.float64), old * scale
    match rule:
        case "asymmetric":
            return at / scale
        case "align_corners":
            return at * (old - 1) / (length - 1) if length > 1 else 0 * at
        case "pytorch_half_pixel" if length <= 1:
            return 0 * at
        case "half_pixel" | "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return old / 2 * (1 - new / length) + (at + 0.5) / scale - 0.5
    raise b.refuse(f"its coordinate_transformation_mode {rule!r} is not supported")


def _nearest(at: Array, args: Mapping[str, Any], count: int) -> Array:
    """The indices of the elements at these places."""
    match "floor" if args["operator"] == "Upsample" else args.get("nearest_mode"):
        case "floor":
            at = np.floor(at)
        case "ceil":
            at = np.ceil(at)
        case "round_prefer_ceil":
            at = np.floor(at + 0.5)
        case _:
            at = np.ceil(at - 0.5)
    return np.clip(at, 0, count - 1).astype(np.int32)


def _repeats(
    b: Builder, args: Mapping[str, Any], changed: Sequence[tuple[int, float, int]], shape: Sequence[int], rule: str
) -> tuple[float, float] | None:
    """How often rows and columns are repeated, where each is as often as all others."""
    found = {2: 1.0, 3: 1.0}
    for dim, scale, size in changed:
        factor = size // shape[dim]
        at = _nearest(_places(b, rule, shape[dim], size, scale), args, shape[dim])
        if len(shape) != 4 or dim not in found or not np.array_equal(at, np.arange(size) // max(factor, 1)):
            return None
        found[dim] = float(factor)
    return (found[2], found[3]) if max(found.values()) > 1 else None


def _weights(at: Array, count: int, cubic: float | None) -> Array:
    """A row of weights for each place; what lies beyond an edge counts as the edge."""
    first, near = np.floor(at), range(0, 2) if cubic is None else range(-1, 3)
    made = np.zeros((at.size, count))
    for tap in near:
        distance = np.abs(at - (first + tap))
        if cubic is None:
            weight = 1 - distance
        else:
            inner = ((cubic + 2) * distance - (cubic + 3)) * distance**2 + 1
            outer = cubic * (((distance - 5) * distance + 8) * distance - 4)
            weight = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))
        np.add.at(made, (np.arange(at.size), np.clip(first + tap, 0, count - 1).astype(np.int64)), weight)
    return made.astype(np.float32)


def _weighted(b: Builder, x: str, dim: int, weights: Array) -> str:
    """Sums of the elements along a dimension with rows of weights."""
    rank = len(b.type(x).shape)
    order = [*(d for d in range(rank) if d != dim), dim]
    last = b.aten("aten.permute.default", {"self": x, "dims": order})
    y = b.aten("aten.linear.default", {"input": last, "weight": b.constant(weights, "weights"), "bias": None})
    return str(b.aten("aten.permute.default", {"self": y, "dims": [order.index(d) for d in range(rank)]}))
