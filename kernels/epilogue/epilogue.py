"""The epilogue of a weighted sum: from int32 accumulators to the stored result, in the sum's own dispatch.

A sum is rounded to int8 as `quantize` would. What the graph computes next from that int8 value may be fused: the bytes
are the same, with one dispatch and one round trip through memory less. An epilogue is a value, a few stages in order,
which weighted sums have as the attribute `epilogue`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import Attr, Operand
from q8ta_wgpu.kernels.epilogue import magic_rounding
from q8ta_wgpu.kernels.epilogue.stage import Stage, StageContext
from q8ta_wgpu.kernels.epilogue.stages import (
    PixelShuffle,
    Requantize,
    from_plain,
)
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Rows

ORDER = re.compile(
    r"(residual |scaled_residual )?(curve |slopes )?requantize( add| mul| table)?(( pixel_shuffle)? dequantize)?"
    r"|(scaled_residual )?(curve |slopes )?requantize_int16|scale( pixel_shuffle)?"
    r"|rows ((residual |scaled_residual |curve |slopes )?requantize|requantize (add|mul|table))( dequantize)?"
    r"|rows (scaled_residual |curve |slopes )?requantize_int16|rows scale"
)
"""The allowed orders of stages, by name. In each of them the operands fit the eight buffers that every device binds."""

MOST_STAGES = 8
"""Most stages in a model file: more than fit ORDER."""


@dataclass(frozen=True)
class Epilogue:
    """Stages in order. Raises GraphError where they do not follow each other as in ORDER."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.fits(self.stages):
            names = " ".join(stage.name for stage in self.stages)
            raise GraphError(f"an epilogue's stages are {ORDER.pattern}, found {names!r}")

    @staticmethod
    def fits(stages: Sequence[Stage]) -> bool:
        """Whether stages follow each other as in ORDER."""
        return ORDER.fullmatch(" ".join(stage.name for stage in stages)) is not None

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
        return self.stages[0].scales_rows

    @property
    def keeps_accumulator(self) -> bool:
        """Whether the result is the accumulator times its scale, never rounded to int8."""
        return self.stages[int(self.rows)].keeps_accumulator

    @property
    def shuffle(self) -> PixelShuffle | None:
        """The stage that moves elements, if there is one."""
        return next((stage for stage in self.stages if isinstance(stage, PixelShuffle)), None)

    @property
    def source(self) -> tuple[str, ...]:
        """WGSL to link: the files `quad` and `stages`, and functions for its hooks.

        * `quad_value` computes the rounded values of four accumulators.
        * `before_rounding` adds a residual to the sums, and `activated` applies an activation to them.
        * `after_rounding` computes the next int8 values from the rounded ones.
        * `store_result` stores them.
        """
        hooks = [hook for stage in self.stages for hook in stage.hooks]
        if self.rounds_by_addition:
            hooks.remove("quad_value=requantized")
            hooks += ["Channel=MagicChannel", "channel_quad=magic_channels", "channel_from=magic_from"]
            hooks += self.stages[0].magic_hooks
            ends = self.stages[-1].rounds_sum
            hooks += (
                ["quad_value=magic_rounded", "packed_result=packed_magic"]
                if ends
                else ["quad_value=requantized_by_magic"]
            )
        return "quad", "stages", *(self._by_rows(hooks) if self.rows else hooks)

    def _by_rows(self, hooks: list[str]) -> list[str]:
        """The hooks where the first stage is `rows`: it fills those of a residual, and passes the residual on."""
        own, others = hooks[: len(Rows.hooks)], hooks[len(Rows.hooks) :]
        if self.keeps_accumulator:
            meanings = {"quad_value=scaled": "quad_value=scaled_by_rows"}
        else:
            meanings = {"ResidualWord=residual_Word": "AddedWord=residual_Word"}
            meanings["residual_of=residual_quad"] = "added_of=residual_quad"
            others = [hook.replace("quad_value=", "value_by_rows=") for hook in others]
            own = [*own, "quad_value=by_rows"]
        return [*own, *(meanings.get(hook, hook) for hook in others)]

    @property
    def rounds_by_addition(self) -> bool:
        """Whether its sums can be rounded by adding magic numbers (magic_rounding.py)."""
        first, *others = self.stages
        rounds = others[0] if first.magic_hooks else first
        return isinstance(rounds, Requantize) and first.magic_span(rounds.hi - rounds.lo) <= magic_rounding.WIDEST

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


def check(types: Sequence[TensorType], attrs: Attrs, sums: Shape) -> tuple[Shape, str]:
    """Shape and dtype of a weighted sum's result.

    Args:
        types: types of all operands of the call, those of the epilogue last.
        attrs: attributes of the call, with `epilogue`.
        sums: shape of the sums.

    Raises:
        GraphError: an operand of a stage does not fit the sums.
    """
    epilogue: Epilogue = attrs["epilogue"]
    others = iter(types[len(types) - len(epilogue.operands) :])
    for stage in epilogue.stages:
        if stage.operand:
            operand = next(others)
            stage.check(operand, sums)
            multiplier = types[2].shape
            if stage.by_channel and operand.shape != multiplier:
                raise GraphError(f"{stage.name} are one number for each channel, {multiplier}, found {operand.shape}")
    shuffle = epilogue.shuffle
    return shuffle.shape(sums) if shuffle else sums, epilogue.dtype


def _shuffle(attrs: Attrs) -> PixelShuffle | None:
    return attrs["epilogue"].shuffle if "epilogue" in attrs else None


def factor(attrs: Attrs) -> int:
    """The upscale factor of the epilogue's pixel_shuffle; 1 without one."""
    shuffle = _shuffle(attrs)
    return shuffle.factor if shuffle else 1


def sums(call: Call) -> Shape:
    """The shape of the sums of a call: that of the result before its pixel_shuffle."""
    shuffle = _shuffle(call.attrs)
    return shuffle.sums(call.output.shape) if shuffle else call.output.shape


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
        zeros = (s.zero for s in stages[i + 1 :] if s.reads_int8)
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
    value: Array = epilogue.stages[int(epilogue.rows)].start(acc, multiplier, offset)
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
    rounds, context = next((s, c) for s, c in stages if isinstance(s, Requantize))
    return first.magic_interval(rounds.lo - context.zero, rounds.hi - context.zero, own)


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
