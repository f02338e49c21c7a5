"""Which variants of a call fit a target's limits, for plans and for tuning, and why if none does.

Padding by a layout, or of a kernel's constants, may exceed the size of a binding. A grid may have too many workgroups.
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
    """A kernel that can run a call on a target: the layouts in which it may read each input, none for constants, and
    those that it may write."""

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
    """The layouts in which a tensor fits into a binding."""
    return tuple(layout for layout in layouts if cost.size(t, layout) <= target.binding_size)


def fitting(call: Call, target: Target) -> list[Fit]:
    """The kernels that can run a call on a target, preferred or not, in the table's order."""
    return _fits((kernel for kernel in OPS[call.op].kernels if kernel.runs(call, target)), call, target)


def preferred(call: Call, target: Target) -> list[Fit]:
    """The kernels that can run a call on a target and are preferred for it; all that can, if none is."""
    runnable = [kernel for kernel in OPS[call.op].kernels if kernel.runs(call, target)]
    chosen = [kernel for kernel in runnable if kernel.preferred(call, target)]
    return _fits(chosen, call, target) or _fits(runnable, call, target)


def _fits(kernels: Iterable[Kernel], call: Call, target: Target) -> list[Fit]:
    return [found for kernel in kernels if (found := _fit(kernel, call, target))]


def _fit(kernel: Kernel, call: Call, target: Target) -> Fit | None:
    """The layouts in which a kernel can run a call on a target; None if a buffer or the grid is too large in all."""
    reads = []
    for position, layouts in enumerate(input_layouts(kernel, call)):
        reads.append(bound(call.inputs[position], layouts, target))
        if not reads[-1] and (layouts or packed_size(kernel, call, position, target) > target.binding_size):
            return None
    outs = bound(call.output, allowed(kernel.output, call.output.dtype), target)
    outs = tuple(out for out in outs if max(kernel.grid(call, out, target)) <= target.workgroups)
    return Fit(kernel, tuple(reads), outs) if outs else None


def packed_size(kernel: Kernel, call: Call, position: int, target: Target) -> int:
    """Bytes of a constant as a kernel packs it. Only constants near the limit are packed to find out; others are not
    padded enough to pass it, and `build` checks the packed size again."""
    t = call.inputs[position]
    size = t.numel * np.dtype(DTYPES[t.dtype]).itemsize
    near_limit = target.binding_size // 4 < size <= target.binding_size
    return _packed_size(kernel, call, position) if near_limit and position in kernel.prepack else size


@functools.lru_cache(maxsize=1 << 8)
def _packed_size(kernel: Kernel, call: Call, position: int) -> int:
    t = call.inputs[position]
    return kernel.prepack[position](call, np.zeros(t.shape, DTYPES[t.dtype])).nbytes


def refusal(call: Call, target: Target, node: str, names: Sequence[str]) -> Exception:
    """The error that says why no kernel can run a call on a target. `node` describes the node in the message, `names`
    are those of the inputs, then of the result."""
    supporting = [kernel for kernel in OPS[call.op].kernels if kernel.supports(call, target)]
    if not supporting:
        types = ", ".join(map(str, call.inputs))
        return UnsupportedError(f"no kernel of {call.op} can run {node} on {target.name} for inputs {types}")
    reasons = [reason for kernel in supporting for reason in _excesses(kernel, call, target, names)]
    _, least = min(reasons, default=(1, "no layouts fit both its inputs and its result"))
    return DeviceError(f"{node}: {least}")


def too_large(what: str, size: int, target: Target) -> str:
    """The message that a buffer is larger than a target can bind."""
    return f"{what} takes {size} bytes, more than the {target.binding_size} bytes that {target.name} can bind"


def _excesses(kernel: Kernel, call: Call, target: Target, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(amount, message) of each limit of a target that a kernel exceeds in every layout."""
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
