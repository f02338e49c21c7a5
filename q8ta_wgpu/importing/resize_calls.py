"""Importer functions of resizing and sampling. ONNX's Resize becomes an index_select, a bilinear resizing, or a
product with constant weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.kernels.move.grid_sample import MODES, PADDINGS
from q8ta_wgpu.kernels.move.upsample_nearest import LARGEST_SCALE


def importer(op: str, spatial: int, **attrs: bool) -> Import:
    """The importer of the resizing operator `op`.

    A size that is a multiple of the input's is imported as a scale factor: most networks compute it from the size of
    another value, and a factor is also correct after `model.reshape`. The `.vec` overloads of aten have lists of scale
    factors, the others a number for each dimension.

    Args:
        op: the operator.
        spatial: number of dimensions that are resized, 1 or 2.
        attrs: attributes besides SIZES; align_corners is taken from the call.
    """

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x = args.get("input", args.get("self"))
        extents = b.type(x).shape[-spatial:]
        sizes = list(args["output_size"] or [0] * spatial)
        names = ("scales",) if spatial == 1 else ("scales_h", "scales_w")
        factors = args["scale_factors"] if "scale_factors" in args else [args[name] for name in names]
        factors = [float(f or 0) for f in factors or [0] * spatial]
        for i, (extent, size, factor) in enumerate(zip(extents, sizes, factors, strict=True)):
            if size and not factor and size % extent == 0 and size <= extent * LARGEST_SCALE:
                factors[i] = size / extent
            if factors[i] and math.floor(extent * factors[i]) == (size or math.floor(extent * factors[i])):
                sizes[i] = 0
            elif factor:
                raise b.refuse(f"its size {size} and its scale {factor} for {extent} elements contradict each other")
        lead = [1.0] * (2 - spatial)
        full = {"scale": [*lead, *(f or 1.0 for f in factors)], "size": [*(0 for _ in lead), *sizes], **attrs}
        if "align_corners" in args:
            full["align_corners"] = bool(args["align_corners"])
        return b.emit(op, (x,), full)

    return rule


_NEAREST = {
    f"aten.{name}{spatial}d.{overload}": importer("upsample_nearest", spatial, exact=exact)
    for name, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))
    for spatial in (1, 2)
    for overload in ("vec", "default")
}


MOST_WEIGHTS = 1 << 26
"""The most weights for a dimension that is resized: 8,192 results of 8,192 elements."""


def resize(b: Builder, args: Mapping[str, Any]) -> str:
    """The importer. The mode nearest selects elements; linear and cubic are weighted sums of them. Raises the builder's
    refusal for other modes, antialias, exclude_outside, and sizes that are computed or too large."""
    x, *inputs = args["inputs"]
    shape, mode = b.type(x).shape, args.get("mode") or "nearest"
    axes = onnx_calls.axes(b, {"inputs": [x], "axes": args.get("axes")}, len(shape))
    axes = list(range(len(shape))) if axes is None else axes
    scales, sizes = _factors(b, args, [shape[d] for d in axes], inputs)
    if args.get("antialias") or args.get("exclude_outside"):
        raise b.refuse("antialias and exclude_outside are not supported")
    rule = args.get("coordinate_transformation_mode") or "half_pixel"
    if _is_old(args):
        rule = "asymmetric"
    changed = [(d, s, n) for d, s, n in zip(axes, scales, sizes, strict=True) if n != shape[d] or s != 1]
    if mode == "linear" and rule in _CORNERS and changed and {d for d, _, _ in changed} <= {2, 3} and len(shape) == 4:
        by = {d: (n, n) for d, _, n in changed if n != 1 and shape[d] * scales[axes.index(d)] == n}
        if len(by) == len(changed):
            size_2d = [by[d][0] if d in by else shape[d] for d in (2, 3)]
            call = {"self": x, "output_size": size_2d, "scales_h": None, "scales_w": None}
            return str(b.aten("aten.upsample_bilinear2d.default", {**call, "align_corners": _CORNERS[rule]}))
    if mode == "nearest" and (repeats := _repeats(b, args, changed, shape, rule)):
        return b.emit("upsample_nearest", (x,), {"scale": repeats, "size": (0, 0), "exact": False})
    for dim, scale, size in changed:
        at = _positions(b, rule, shape[dim], size, scale)
        if mode == "nearest":
            index = b.constant(_nearest(at, args, shape[dim]), "index")
            x = b.aten("aten.index_select.default", {"self": x, "dim": dim, "index": index})
        elif mode in ("linear", "cubic"):
            sharp = args.get("cubic_coeff_a")
            if at.size * shape[dim] > MOST_WEIGHTS:
                raise b.refuse(f"it resizes {shape[dim]} elements to {at.size}: {MOST_WEIGHTS} weights at most")
            x = _weighted(
                b, x, dim, _weights(at, shape[dim], None if mode == "linear" else -0.75 if sharp is None else sharp)
            )
        else:
            raise b.refuse(f"its mode must be nearest, linear or cubic, found {mode!r}")
    return str(x)


_CORNERS = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
"""The coordinate transformations that upsample_bilinear has, and their align_corners."""


def _is_old(args: Mapping[str, Any]) -> bool:
    """Whether a call is of the time before coordinate transformations: Upsample, and Resize of opset 10."""
    return args["operator"] == "Upsample" or int(args["opset"]) < 11


def _factors(
    b: Builder, args: Mapping[str, Any], shape: Sequence[int], inputs: Sequence[str | None]
) -> tuple[list[float], list[int]]:
    """The scale factor and the size of each dimension, from the inputs or attributes of the call."""
    scales = onnx_calls.constant(b, inputs[-1 if len(inputs) < 2 else 1] if inputs else None, "scales")
    if args.get("scales") is not None:
        scales = np.asarray(args["scales"], np.float32)
    sizes = onnx_calls.constant(b, inputs[2] if len(inputs) > 2 else None, "sizes")
    found = sizes if sizes is not None and sizes.size else scales
    if found is None or found.size != len(shape):
        raise b.refuse(f"it needs scales or sizes of its {len(shape)} dimensions")
    if sizes is None or not sizes.size:
        factors = [float(f) for f in found.reshape(-1)]
        result = [int(np.floor(n * f)) if np.isfinite(f) else 0 for n, f in zip(shape, factors, strict=True)]
    else:
        result = [int(n) for n in found.reshape(-1)]
        factors = [n / old for n, old in zip(result, shape, strict=True)]
        policy = args.get("keep_aspect_ratio_policy") or "stretch"
        if policy != "stretch":
            factor = (min if policy == "not_larger" else max)(factors)
            factors = [factor] * len(shape)
            result = [int(np.floor(n * factor + 0.5)) for n in shape]
    if any(not 1 <= n <= MAX_EXTENT for n in result):
        raise b.refuse(f"its result would have the sizes {result}: 1 to {MAX_EXTENT} are supported")
    return factors, result


def _positions(b: Builder, rule: str, old: int, new: int, scale: float) -> Array:
    """The position of each of `new` result elements among `old` elements of the operand, float64."""
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


_ROUNDED: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_ceil": lambda at: np.asarray(np.floor(at + 0.5)),
    "round_prefer_floor": lambda at: np.asarray(np.ceil(at - 0.5)),
}


def _nearest(at: Array, args: Mapping[str, Any], count: int) -> Array:
    """The indices of the elements that are nearest to these positions, by the call's nearest_mode."""
    mode = "floor" if _is_old(args) else args.get("nearest_mode") or "round_prefer_floor"
    return np.clip(_ROUNDED[mode](at), 0, count - 1).astype(np.int32)


def _repeats(
    b: Builder, args: Mapping[str, Any], changed: Sequence[tuple[int, float, int]], shape: Sequence[int], rule: str
) -> tuple[float, float] | None:
    """(rows, columns): how often each row and column is repeated; None where that differs between rows or columns, or
    other dimensions change."""
    found = {2: 1.0, 3: 1.0}
    for dim, scale, size in changed:
        factor = size // shape[dim]
        at = _nearest(_positions(b, rule, shape[dim], size, scale), args, shape[dim])
        if len(shape) != 4 or dim not in found or not np.array_equal(at, np.arange(size) // max(factor, 1)):
            return None
        found[dim] = float(factor)
    return (found[2], found[3]) if max(found.values()) > 1 else None


def _weights(at: Array, count: int, cubic: float | None) -> Array:
    """A row of weights over `count` elements for each position, float32. Taps outside count for the element at the
    edge. `cubic` is the coefficient a of cubic interpolation; None is linear."""
    first, taps = np.floor(at), range(0, 2) if cubic is None else range(-1, 3)
    weights = np.zeros((at.size, count))
    for tap in taps:
        distance = np.abs(at - (first + tap))
        if cubic is None:
            weight = 1 - distance
        else:
            inner = ((cubic + 2) * distance - (cubic + 3)) * distance**2 + 1
            outer = cubic * (((distance - 5) * distance + 8) * distance - 4)
            weight = np.where(distance <= 1, inner, np.where(distance < 2, outer, 0.0))
        np.add.at(weights, (np.arange(at.size), np.clip(first + tap, 0, count - 1).astype(np.int64)), weight)
    return weights.astype(np.float32)


def _weighted(b: Builder, x: str, dim: int, weights: Array) -> str:
    """Weighted sums along a dimension, by a linear with `weights` (results, elements)."""
    rank = len(b.type(x).shape)
    order = [*(d for d in range(rank) if d != dim), dim]
    last = b.aten("aten.permute.default", {"self": x, "dims": order})
    y = b.aten("aten.linear.default", {"input": last, "weight": b.constant(weights, "weights"), "bias": None})
    return str(b.aten("aten.permute.default", {"self": y, "dims": [order.index(d) for d in range(rank)]}))


def _grid_sample(b: Builder, x: str, grid: str, mode: str, padding: str, align_corners: Any) -> str:
    if len(b.type(x).shape) != 4 or mode not in MODES or padding not in PADDINGS:
        raise b.refuse(
            f"it takes images (n, c, h, w) in the modes {' and '.join(MODES)}, with padding by {', '.join(PADDINGS)}: "
            f"found {b.type(x).shape}, {mode} and {padding}"
        )
    attrs = {"mode": mode, "padding": padding, "align_corners": bool(align_corners)}
    return b.emit("grid_sample", (x, grid), attrs)


def _import_grid_sample(b: Builder, args: Mapping[str, Any]) -> str:
    mode = (*MODES, "bicubic")[args["interpolation_mode"]]
    return _grid_sample(b, args["input"], args["grid"], mode, PADDINGS[args["padding_mode"]], args["align_corners"])


def _onnx_grid_sample(b: Builder, args: Mapping[str, Any]) -> str:
    (x, grid), mode = args["inputs"], {"linear": "bilinear"}.get(args["mode"], args["mode"])
    return _grid_sample(b, x, grid, mode, args["padding_mode"], args["align_corners"])


ATEN: Rules = {
    "upsample_nearest": _NEAREST,
    "upsample_bilinear": {
        f"aten.upsample_{name}.{overload}": importer("upsample_bilinear", spatial)
        for name, spatial in (("linear1d", 1), ("bilinear2d", 2))
        for overload in ("vec", "default")
    },
    "grid_sample": {f"aten.{name}.default": _import_grid_sample for name in ("grid_sampler", "grid_sampler_2d")},
}
ONNX: Rules = {
    "upsample_nearest": {"Resize": resize, "Upsample": resize},
    "grid_sample": {"GridSample": _onnx_grid_sample},
}
