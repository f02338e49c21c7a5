"""How values are stored: what the plan says, and the quantizer does."""

from __future__ import annotations

from dataclasses import dataclass, field

from q8ta_wgpu.ir.graph import QParams

INT8, SLICE, WHOLE, INT16 = "int8", "int8 with zero point 0", "int8 of whole numbers", "int16"
"""How a value is stored: at a scale of its own, in one tensor with other slices, as whole numbers that stay what they
are where int8 holds them, as part of a residual stream."""


@dataclass(frozen=True)
class Shared:
    """A value is stored as the one that a call reads first."""

    call: str


Storage = str | QParams | Shared
"""INT8, SLICE, WHOLE, INT16, a scale and zero point that suit any data, or shared with another value."""


@dataclass
class Rounding:
    """How values are stored.

    Attributes:
        reads: storage of the values that a call of the user's program reads, by call and value.
        gives: storage of values where they are computed.
        in_float: calls that stay in float because all that reads them does.
        attention: calls that are one operator: the first product, the softmax and the second product.
    """

    reads: dict[tuple[str, str], Storage] = field(default_factory=dict)
    gives: dict[str, Storage] = field(default_factory=dict)
    in_float: list[str] = field(default_factory=list)
    attention: list[tuple[str, str, str]] = field(default_factory=list)
