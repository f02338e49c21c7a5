"""The result of `compare`: where a quantized network loses accuracy, layer by layer, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.quantization.noise_causes import Cause
from q8ta_wgpu.quantization.parts import decibels
from q8ta_wgpu.quantization.tuned import FAIR, GOOD, NOTHING

LOSS = 3.0
"""A layer with a larger loss, in dB, is named in the advice. Halving a scale gains six."""

_NEAR = 1.0
"""The distance to the yardstick, in dB, within which more bits gain nothing if outputs have a fair ratio."""

_FOUND = {
    "rounding": "{bits} bits are too few",
    "before": "noise of what it reads grows here, as where nearly equal values are subtracted or divisors are near 0",
    "weights": "its rounded weights make most of the noise",
    "clipping": "clipped. Calibrate with inputs that reach so far",
}
"""What is said of values by the cause of their noise."""

_ALSO = {
    "rounding": "name those that read the value, too",
    "before": "name those that compute what it reads, too",
    "weights": 'if weights="int4" was asked for, "int8" is finer',
}
"""What is said of skipped modules, by the causes for which skipping helps."""

_WIDE = 'Quantizer(precision="int16") stores in 16 bits whatever can be'

_WIDER = {
    "rounding": _WIDE,
    "before": _WIDE,
    "clipping": 'If the calibration had such inputs, Quantizer(precision="int16") has a range for them',
}
"""What is said of 16 bits, by the causes for which they help."""

_LISTED = 4
"""The most names in a sentence."""


@dataclass(frozen=True)
class Layer:
    """One stored int8 or int16 value, or an output of the network.

    Attributes:
        name: what made it in the user's program: the path of a module, with an operator behind it where the module
            has several; of no module, the operator in the exported program.
        module: path of its module, as `Quantizer(skip=[...])` takes it; empty without one. If the noise comes from
            rounded weights, the module that has these.
        source: its position in the user's model.
        simulated: signal-to-noise ratio in dB of PT2E's simulation against the float module, over all channels; NaN of
            an ONNX file, which has none.
        snr: the same of this library's integer arithmetic. Both are means over channels (see docs/compare.md).
        lost: dB by which `snr` is below the worst of the values that the layer reads. For one that reads none, dB by
            which it is below what rounding without clipping leaves: of an input by channels, of others of all values
            together.
        clipped: share of the float values beyond the range of what is stored; 0 for values that are not rounded.
        place: its index in the network's order.
        output: whether it is an output of the network.
        stored: the dtype in which it is stored: int8, int16, or float32 of an output that is not rounded.
        part: of an output, the part that `snr` is of, if one has more noise than the whole: a value that was joined to
            make it, or channels or items of like size. Empty for the whole.
        cause: the largest part of the noise: "clipping" of elements beyond the range, "rounding" of all others to a
            step of the value's own scale, rounded "weights", or "before": noise of the values that the layer reads.
    """

    name: str
    module: str
    source: str
    simulated: float
    snr: float
    lost: float
    clipped: float
    place: int
    output: bool = False
    cause: Cause = "rounding"
    stored: str = "int8"
    part: str = ""


@dataclass(frozen=True)
class Comparison:
    """Every stored int8 and int16 value of a network and its outputs, the largest loss first. `print` shows the table,
    and below it what to do.

    Attributes:
        layers: the rows, as `Layer`.
        predicted: signal to noise in dB that `quantize` predicted for the output that is farthest below the yardstick;
            None if it predicted none.
        yardstick: signal to noise in dB, on the same inputs, of a network in which only weights and the inputs of
            weighted sums are rounded.
        calls: for several calls, one after the other, the comparison of each; `layers` are of all together.
        precision: that of the `Quantizer`; empty of another quantizer.
        predicted_output: of several outputs, which one `predicted` is of.
        of_file: whether an ONNX file is compared, which has its options in `quantize`, and operators for modules.
    """

    layers: tuple[Layer, ...]
    predicted: float | None = None
    yardstick: float | None = None
    calls: tuple[Comparison, ...] = ()
    precision: str = ""
    predicted_output: str = ""
    of_file: bool = False

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do: a line for each cause of a loss. Empty if little is lost. More bits for activations are not
        advised if they would not improve the outputs. Finer weights are not advised where outputs are good: the
        yardstick does not limit them, since its weights are rounded as well. No layer is named that has next to no
        noise beside one that is clipped."""
        found, worst = list[str](), min((x.snr for x in self.layers if x.output), default=0.0)
        every = [x for x in self.layers if x.lost >= LOSS]
        noticed = min((x.snr for x in every if x.cause == "clipping"), default=math.inf) + decibels(NOTHING)
        limit = math.inf if self.yardstick is None else max(self.yardstick - _NEAR, decibels(FAIR))
        limits = {"rounding": limit, "before": limit, "weights": decibels(GOOD), "clipping": math.inf}
        for cause, most in limits.items():
            lossy = [x for x in every if x.cause == cause and x.snr < noticed]
            kinds = dict.fromkeys(x.stored if cause in ("rounding", "clipping") else "" for x in lossy)
            for kind in kinds if worst < most else ():
                found.append(self._said(cause, [x for x in lossy if kind in ("", x.stored)]))
        return tuple(found)

    def _said(self, cause: str, rows: Sequence[Layer]) -> str:
        """What to do about rows of one cause."""
        said = [f"{_listed([x.name for x in rows])}: {_FOUND[cause].format(bits=rows[0].stored.removeprefix('int'))}"]
        modules = dict.fromkeys(x.module for x in rows if x.module)
        if cause in _WIDER and self.precision in ("auto", "int8") and any(x.stored == "int8" for x in rows):
            said.append(_WIDER[cause])
        if cause in _ALSO and modules:
            skip = ", ".join([*map(repr, modules), "..."])
            said.append(f"Quantizer(skip=[{skip}]) leaves modules in float; {_ALSO[cause]}")
        if cause in _ALSO and (loose := [x.name for x in rows if x.source and not x.module]):
            said.append(f"To skip {_listed(loose)}, which no module has, call it in a module of its own")
        text = ". ".join(said)
        return text.replace("Quantizer(", "quantize(..., ").replace("modules", "operators") if self.of_file else text

    def __str__(self) -> str:
        head = f"{'lost dB':>8} {'SNR dB':>8} {'PT2E dB':>8} {'clipped':>8}  {'stored':7}  {'noise by':8}  layer"
        rows = [
            f"{x.lost:z8.1f} {x.snr:z8.1f} {_shown(x.simulated)} {100 * x.clipped:7.2f}%  {x.stored:7}  {x.cause:8}  "
            + f"{x.name} {x.source.removeprefix(x.module).strip()}".rstrip()
            + (f" ({x.part} of the output)" if x.part else " (output)" if x.output else "")
            for x in self.layers
        ]
        if self.predicted is not None and self.yardstick is not None:
            rows.append(
                f"{self.predicted:z.1f} dB were predicted for {self.predicted_output or 'the outputs'} on the inputs "
                "of the calibration, where rounding nothing but weights and what they are multiplied by leaves "
                f"{self.yardstick:z.1f}"
            )
        outputs = [[x.snr for x in call.layers if x.output] for call in self.calls]
        if found := [min(call) for call in outputs if call]:
            rows.append(
                f"outputs of {len(found)} calls: {found[0]:z.1f} dB in the first, {found[-1]:z.1f} in the last, "
                f"{min(found):z.1f} in the worst"
            )
        return "\n".join([head, *rows, *self.advice])


def _shown(ratio: float) -> str:
    """A ratio in a column of the table; empty if there is none."""
    return " " * 8 if math.isnan(ratio) else f"{ratio:z8.1f}"


def _listed(names: Sequence[str]) -> str:
    """The first names as a list in a sentence."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
