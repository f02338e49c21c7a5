"""The epilogue of a weighted sum: from int32 accumulators to the stored result, in the sum's own dispatch.

A sum is rounded to int8 as `quantize` would. What the graph computes next from that int8 value may be fused: the bytes
are the same, with one dispatch and one round trip through memory less. An epilogue is a value, a few stages in order,
which weighted sums have as the attribute `epilogue`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import Attr, Operand
from q8ta_wgpu.kernels.epilogue import magic_rounding
from q8ta_wgpu.kernels.epilogue.stage import Phase, Stage, StageContext
from q8ta_wgpu.kernels.epilogue.stages import from_plain

MOST_STAGES = len(Phase)
"""Most stages of an epilogue: one of each phase."""

EVERY = frozenset(Phase)
"""What operators may give: the stages of these phases."""


@dataclass(frozen=True)
class Epilogue:
    """Stages in order. Raises GraphError where they cannot follow each other."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if text := wrong(self.stages):
            names = " ".join(stage.name for stage in self.stages)
            raise GraphError(f"an epilogue's stages are {text}, found {names!r}")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of its stages in order; they follow those of the sum."""
        return tuple(stage.operand for stage in self.stages if stage.operand is not None)

    @property
    def dtype(self) -> str:
        """The result's dtype."""
        return FLOAT32 if self.keeps_accumulator else self.stages[-1].dtype

    @property
    def rows(self) -> bool:
        """Whether each row of the sum's operand has a scale of its own."""
        return self.stages[0].phase is Phase.ROWS

    @property
    def rounds(self) -> Stage:
        """The stage that rounds the sum, or keeps it."""
        return next(stage for stage in self.stages if stage.phase is Phase.ROUNDING)

    @property
    def keeps_accumulator(self) -> bool:
        """Whether the result is the accumulator times its scale, never rounded to int8."""
        return self.rounds.keeps_accumulator

    @property
    def rounds_by_addition(self) -> bool:
        """Whether its sums can be rounded by adding magic numbers (magic_rounding.py): if at most one stage comes
        before the rounding, and both allow it."""
        first, rounds = self.stages[0], self.rounds
        allowed = first.adds and rounds.adds and rounds in self.stages[:2]
        return allowed and first.magic_span(rounds.bounds[1] - rounds.bounds[0]) <= magic_rounding.WIDEST

    def hooks(self, by_addition: bool) -> tuple[str, ...]:
        """The WGSL of its stages and of the hooks that they fill, where sums are rounded by addition or not.

        * `rounded` makes values of four accumulators: `before_rounding` adds a residual, `activated` is an activation.
        * `after_rounding` computes the next int8 values from the rounded ones.
        * `store_result` stores them.
        """
        last = self.stages[-1]
        return "stages", *(hook for stage in self.stages for hook in stage.linked(by_addition, stage is last))

    @property
    def declarations(self) -> tuple[str, ...]:
        """WGSL of the numbers of four channels: those of the sum, and those of each stage that has some."""
        names = [stage.operand.name for stage in self.stages if stage.by_channel and stage.operand]
        members = "".join(f", {name}: vec4<f32>" for name in names)
        loaded = "".join(f", vec4<f32>({', '.join(f'{name}[c.{i}]' for i in 'xyzw')})" for name in names)
        shuffled = "".join(f", subgroupShuffle(own.{name}, i)" for name in names)
        return (
            f"struct Channel {{ numbers: Numbers{members} }}",
            f"fn channel_with(numbers: Numbers, c: vec4<u32>) -> Channel {{ return Channel(numbers{loaded}); }}",
            f"fn channel_from(own: Channel, i: u32) -> Channel "
            f"{{ return Channel(numbers_from(own.numbers, i){shuffled}); }}",
        )

    def clamped(self, lo: int, hi: int) -> Epilogue | None:
        """This epilogue with its int8 result also clamped to [lo, hi]; None where its last stage has no range."""
        *before, last = self.stages
        clamped = last.clamped(lo, hi)
        return None if clamped is None else Epilogue((*before, clamped))

    def plain(self) -> list[dict[str, Any]]:
        """Its stages as JSON: a list of dictionaries."""
        return [stage.plain() for stage in self.stages]

    @staticmethod
    def from_plain(data: Any) -> Epilogue:
        """The epilogue of a JSON value that `plain` returned. Raises GraphError for any other value."""
        if not isinstance(data, list) or len(data) > MOST_STAGES:
            raise GraphError(f"an epilogue is a list of at most {MOST_STAGES} stages")
        return Epilogue(tuple(from_plain(item) for item in data))

    @property
    def label(self) -> str:
        """The names of its stages, as in reports."""
        return " -> ".join(stage.name for stage in self.stages)

    def __str__(self) -> str:
        return " -> ".join(map(str, self.stages))


EPILOGUE = Attr("value", type=Epilogue)
"""The attribute of a weighted sum."""


def wrong(stages: Sequence[Stage]) -> str:
    """What stages would have to be to follow each other; empty if they do."""
    phases = [stage.phase for stage in stages]
    if Phase.ROUNDING not in phases or any(a >= b for a, b in itertools.pairwise(phases)):
        return f"at most one of each of {', '.join(p.name.lower() for p in Phase)}, in this order, and a rounding"
    rounds = stages[phases.index(Phase.ROUNDING)]
    if rounds.keeps_accumulator and phases.index(Phase.ROUNDING) > (phases[0] is Phase.ROWS):
        return f"{rounds.name} before any that changes the sum"
    if rounds.dtype != INT8X4 and (found := [stage.name for stage in stages if stage.for_int8]):
        return f"a rounding to int8 with {found[0]}"
    if Phase.SHUFFLE in phases and FLOAT32 not in (rounds.dtype, stages[-1].dtype):
        return "a float32 result with a shuffle"
    if phases[0] is Phase.ROWS and sum(stage.operand is not None for stage in stages) > 2:
        return "at most one with an operand beside rows, so that all operands fit eight buffers"
    return ""


def check(
    types: Sequence[TensorType], attrs: Attrs, sums: Shape, gives: frozenset[Phase] = EVERY - {Phase.ROWS}
) -> tuple[Shape, str]:
    """Shape and dtype of a weighted sum's result.

    Args:
        types: types of all operands of the call, those of the epilogue last.
        attrs: attributes of the call, with `epilogue`.
        sums: shape of the sums.
        gives: the phases that the operator's kernels give.

    Raises:
        GraphError: an operand of a stage does not fit the sums, or the operator gives no stage of its phase.
    """
    epilogue: Epilogue = attrs["epilogue"]
    others = iter(types[len(types) - len(epilogue.operands) :])
    shape = sums
    for stage in epilogue.stages:
        if stage.phase not in gives:
            names = ", ".join(phase.name.lower() for phase in sorted(gives))
            raise GraphError(f"the operator takes stages of {names}, found {epilogue}")
        if stage.operand:
            operand = next(others)
            stage.check(operand, sums)
            multiplier = types[2].shape
            if stage.by_channel and operand.shape != multiplier:
                raise GraphError(f"{stage.name} are one number for each channel, {multiplier}, found {operand.shape}")
        shape = stage.shape(shape)
    return shape, epilogue.dtype


def source(call: Call) -> tuple[str, ...]:
    """The WGSL of what follows a weighted sum, for `Kernel.source`."""
    after: Epilogue = call.attrs["epilogue"]
    return after.hooks(after.rounds_by_addition)


def factor(attrs: Attrs) -> int:
    """The factor by which the epilogue upscales an image; 1 for most."""
    return math.prod(stage.upscale for stage in attrs["epilogue"].stages) if "epilogue" in attrs else 1


def sums(call: Call) -> Shape:
    """The shape of the sums of a call: that of the result before its pixel_shuffle."""
    shape = call.output.shape
    for stage in reversed(call.attrs["epilogue"].stages if "epilogue" in call.attrs else ()):
        shape = stage.sums(shape)
    return shape


def extents(call: Call) -> tuple[int, int, int, int]:
    """The shape of the sums of a call as (n, c, h, w); missing dimensions on the left are 1."""
    return canonical(sums(call))


def _stages(call: Call, arrays: Sequence[Array] = ()) -> Iterator[tuple[Stage, StageContext]]:
    """Every stage of a call with its context. The zero point of an int8 value that is not stored is a number of the
    stage that reads it."""
    stages = call.attrs["epilogue"].stages
    others, values = iter(call.inputs[len(call.inputs) - len(call.attrs["epilogue"].operands) :]), iter(arrays)
    stored = call.output.q.zero if call.output.q else 0
    for i, stage in enumerate(stages):
        zeros = (s.reads_zero for s in stages[i + 1 :] if s.reads_zero is not None)
        reads = (next(others), next(values, None)) if stage.operand else ()
        yield stage, StageContext(next(zeros, stored), *reads)


def apply(call: Call, acc: NDArray[np.int64], channel: int, arrays: Sequence[Array]) -> Array:
    """The result of a call from its sums: the definition of every epilogue.

    Args:
        acc: int64, the sums of (x - z_x) * w.
        channel: the axis of output channels.
        arrays: multiplier (channels,), offset (channels,), and the operands of the stages in order.

    Returns:
        float32, int8 or int16, by the last stage. The shape is that of `acc`, or of its pixel_shuffle.
    """
    shape = [-1 if axis == channel % acc.ndim else 1 for axis in range(acc.ndim)]
    multiplier, offset, *more = (arrays[0].reshape(shape), arrays[1].reshape(shape), *arrays[2:])
    epilogue: Epilogue = call.attrs["epilogue"]
    if epilogue.rows:
        if epilogue.keeps_accumulator:
            offset = np.rint(offset * arithmetic.row_inverse(more[0]))
        multiplier = arithmetic.row_multiplier(multiplier, more[0])
    value = epilogue.rounds.start(acc, multiplier, offset)
    for stage, context in _stages(call, more):
        if stage.by_channel:
            context = replace(context, array=context.values.reshape(shape))
        value = stage.apply(value, context)
    return value


def shifted(call: Call, offset: Array) -> Array:
    """The offset, int32 (channels,), minus a residual's zero point times its multiplier."""
    zeros = sum(stage.steps_of_zero(context) for stage, context in _stages(call))
    return (offset.astype(np.int64) - zeros).astype(np.int32)


def pack_offset(call: Call, offset: Array) -> Array:
    """`Kernel.prepack` of the offset: `shifted`, padded with zeros to a multiple of four channels, and for
    magic_rounding.py with its numbers."""
    if call.attrs["epilogue"].keeps_accumulator:
        return np.pad(offset, (0, -len(offset) % 4))
    padded = np.pad(shifted(call, offset).astype(np.int64), (0, -len(offset) % 4))
    if call.attrs["epilogue"].rounds_by_addition:
        return magic_rounding.pack(padded, *_interval(call))
    return padded.astype(np.int32)


def _interval(call: Call) -> tuple[int, int]:
    """The interval of sums outside of which the result is constant, in fractions as the first stage counts them."""
    (first, own), *_ = stages = list(_stages(call))
    rounds, context = next((stage, context) for stage, context in stages if stage.phase is Phase.ROUNDING)
    low, high = rounds.bounds
    return first.magic_interval(low - context.zero, high - context.zero, own)


def params(call: Call) -> Params:
    """Uniform fields of the epilogue: those of every stage, and the extents that say where results are stored."""
    fields: dict[str, Any] = {
        "sums": extents(call),
        "channels": np.uint32(call.inputs[1].shape[0]),
        "quads": np.uint32(-(-call.inputs[1].shape[0] // 4)),
        "factor": np.uint32(factor(call.attrs)),
    }
    return {**fields, **stage_fields(call)}


def stage_fields(call: Call) -> Params:
    """Uniform fields of every stage."""
    return {name: value for stage, context in _stages(call) for name, value in stage.fields(context).items()}
