"""The plan's vocabulary: how each value is stored. The quantizer carries it out."""

from __future__ import annotations

from dataclasses import dataclass, field

from q8ta_wgpu.ir.graph import Array, QParams

INT8, SLICE, WHOLE, INT16 = "int8", "int8 with zero point 0", "int8 of whole numbers", "int16"
"""How a value is stored: INT8 at a scale of its own; SLICE at a scale of its own, in one tensor with other slices;
WHOLE at scale 1, where int8 holds the numbers exactly; INT16 for residual streams and other sensitive values."""


@dataclass(frozen=True)
class Shared:
    """A value has the quantization of the first operand of a call.

    Attributes:
        call: name of the call.
    """

    call: str


Storage = str | QParams | Shared
"""INT8, SLICE, WHOLE, INT16; a fixed scale and zero point, as of softmax; or that of another value."""


@dataclass(frozen=True)
class Attention:
    """An attention that becomes one operator.

    Attributes:
        product, softmax, context: what its first product, its softmax and its second product give.
        bias: what is added to scores, (batch, heads, queries, keys).
    """

    product: str
    softmax: str
    context: str
    bias: Array


@dataclass
class Rounding:
    """The plan: how values are stored.

    Attributes:
        reads: storage of operands, by call of the user's program and name of the value.
        gives: storage of results, by name of the value.
        in_float: calls that stay in float32, and why.
        attention: those that become one operator.
    """

    reads: dict[tuple[str, str], Storage] = field(default_factory=dict)
    gives: dict[str, Storage] = field(default_factory=dict)
    in_float: dict[str, str] = field(default_factory=dict)
    attention: list[Attention] = field(default_factory=list)
