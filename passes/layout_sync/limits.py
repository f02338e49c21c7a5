"""What a target's limits leave of the variants of a call, for plans and for tuning alike, and why nothing is left.

A layout may pad a tensor, and a kernel its constants, beyond what a binding covers; a grid may be too large.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.errors import DeviceError, UnsupportedError
from q8ta_wgpu.ir.graph import DTYPES, RANGES, Call, TensorType
from q8ta_wgpu.ir.kernel import Kernel, LayoutSet
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, ROW_MAJOR, Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync import cost


@dataclass(frozen=True)
class Fit:
    """A kernel that can run a call on a target, with the layouts it may read each input in, none for constants, and
    those it may write."""

    kernel: Kernel
    reads: tuple[tuple[Layout, ...], ...]
    outs: tuple[Layout, ...]


def allowed(layouts: LayoutSet, dtype: str) -> tuple[Layout, ...]:
    """The members of a kernel's layout set that fit a dtype, in a fixed order."""
    order = INT8_LAYOUTS if dtype in RANGES else (ROW_MAJOR,)
    return tuple(layout for layout in order if layout in layouts)


def input_layouts(kernel: Kernel, call: Call) -> list[tuple[Layout, ...]]:
    """Layouts a kernel allows for each input; empty for constant operands."""
    op = OPS[call.op]
    inputs: list[tuple[Layout, ...]] = []
    activations = 0
    for position, t in enumerate(call.inputs):
        if op.operand(position, call.attrs).constant:
            inputs.append(())
            continue
        inputs.append(allowed(kernel.inputs[min(activations, len(kernel.inputs) - 1)], t.dtype))
        activations += 1
    return inputs


def bound(t: TensorType, layouts: Sequence[Layout], target: Target) -> tuple[Layout, ...]:
    """The layouts in which a binding covers a tensor."""
    return tuple(layout for layout in layouts if cost.size(t, layout) <= target.binding_size)


def fitting(call: Call, target: Target) -> list[Fit]:
    """The kernels that can run a call on a target, preferred or not, in the table's order."""
    return _fits((kernel for kernel in OPS[call.op].kernels if kernel.runs(call, target)), call, target)


def preferred(call: Call, target: Target) -> list[Fit]:
    """The kernels that can run a call on a target and are preferred for it; all that can, if none is."""
    runs = [kernel for kernel in OPS[call.op].kernels if kernel.runs(call, target)]
    wanted = [kernel for kernel in runs if kernel.preferred(call, target)]
    return _fits(wanted, call, target) or _fits(runs, call, target)


def _fits(kernels: Iterable[Kernel], call: Call, target: Target) -> list[Fit]:
    return [found for kernel in kernels if (found := _fit(kernel, call, target))]


def _fit(kernel: Kernel, call: Call, target: Target) -> Fit | None:
    """The layouts in which a kernel that runs a call can run it; None if buffers or grids are too large in all."""
    reads = []
    for position, layouts in enumerate(input_layouts(kernel, call)):
        reads.append(bound(call.inputs[position], layouts, target))
        if not reads[-1] and (layouts or packed_size(kernel, call, position, target) > target.binding_size):
            return None
    outs = bound(call.output, allowed(kernel.output, call.output.dtype), target)
    outs = tuple(out for out in outs if max(kernel.grid(call, out, target)) <= target.workgroups)
    return Fit(kernel, tuple(reads), outs) if outs else None


def packed_size(kernel: Kernel, call: Call, position: int, target: Target) -> int:
    """Bytes of a constant as a kernel packs it. What is far below the limit is not packed to find out: packing pads
    large constants but little, and `build` looks at what was packed."""
    t = call.inputs[position]
    size = t.numel * np.dtype(DTYPES[t.dtype]).itemsize
    near = target.binding_size // 16 < size <= target.binding_size
    return _packed_size(kernel, call, position) if near and position in kernel.prepack else size


@functools.lru_cache(maxsize=1 << 8)
def _packed_size(kernel: Kernel, call: Call, position: int) -> int:
    t = call.inputs[position]
    return kernel.prepack[position](call, np.zeros(t.shape, DTYPES[t.dtype])).nbytes


def refusal(call: Call, target: Target, node: str, names: Sequence[str]) -> Exception:
    """Why no kernel can run a call on a target. `node`: what makes the call, for the message; `names`: of the inputs,
    then of the result."""
    made_for = [kernel for kernel in OPS[call.op].kernels if kernel.supports(call, target)]
    if not made_for:
        types = ", ".join(map(str, call.inputs))
        return UnsupportedError(f"no kernel of {call.op} can run {node} on {target.name} for inputs {types}")
    reasons = [reason for kernel in made_for for reason in _excesses(kernel, call, target, names)]
    _, least = min(reasons, default=(1, "no layouts fit both its inputs and its result"))
    return DeviceError(f"{node}: {least}")


def too_large(what: str, size: int, target: Target) -> str:
    """That a buffer is larger than a target can bind."""
    return f"{what} takes {size} bytes, more than the {target.binding_size} bytes that {target.name} can bind"


def _excesses(kernel: Kernel, call: Call, target: Target, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """What a kernel needs beyond a target in every layout: how much, and in words."""
    if found := kernel.exceeds(call, target):
        yield 0, found
    outs = allowed(kernel.output, call.output.dtype)
    tensors = zip(names, (*call.inputs, call.output), (*input_layouts(kernel, call), outs), strict=True)
    for position, (name, t, layouts) in enumerate(tensors):
        if layouts and not bound(t, layouts, target):
            size = min(cost.size(t, layout) for layout in layouts)
            yield size, f"{too_large(f'value {name}', size, target)}: use a smaller input, or q8ta_wgpu.TiledSession"
        if not layouts and (size := packed_size(kernel, call, position, target)) > target.binding_size:
            text = too_large(f"constant {name}, as {kernel.name} packs it,", size, target)
            yield size, f"{text}: take an adapter that binds more (python -m q8ta_wgpu devices), or split the layer"
    if all((grid := max(kernel.grid(call, out, target))) > target.workgroups for out in outs):
        yield grid, f"{names[-1]} takes {grid} workgroups in a dimension, {target.name} allows {target.workgroups}"
