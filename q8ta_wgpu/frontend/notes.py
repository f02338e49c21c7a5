"""Notes about a program or its nodes. torch keeps them as "custom" when it converts, exports and saves, as JSON."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

FIXED = "q8ta_fixed"
"""Of a program: the dimensions of inputs from which the network computes numbers, as (input, dimension, step, reason);
see `ValueInfo.fixed`."""

PRECISION = "q8ta_precision"
"""Of a program: how values are stored and why, and the predicted accuracy of the outputs, as `said_of` of on_graph.py
has it."""

ASKED = "q8ta_asked"
"""Of a program: the precision that its `Quantizer` was asked for; none of another quantizer."""

SKIPPED = "q8ta_skipped"
"""Of a program: the paths of modules that its `Quantizer` left in float32, whose operators it rewrote in no way."""

SIZES = "q8ta_dynamic"
"""What follows from sizes of inputs (export/formulas.py). Of a program: its `Dimensions`. Of a call: its operator, and
the index and the terms of each argument that is a size. Of a parameter: the terms of its shape. Of an input: its
dimensions that have many sizes, and the terms of each."""

IN_FLOAT = "q8ta_kept"
"""Of a call: why it stays in float32 (`ValueInfo.in_float`)."""

JOINED = "q8ta_joined"
"""Of a call: that values are rounded as one operator with others reads and gives them (`ValueInfo.is_joined`)."""

MADE_OF = "q8ta_made_of"
"""Of a constant that was computed: the parameters and buffers that it was computed from."""

TRANSFORM = "q8ta_transform"
"""Of a call: that it replaced another operator, so that its weights are not the network's (`nodes.is_transform`)."""

SHIFTS = "q8ta_shifts"
"""Of a recurrent layer: by how many fraction bits its states have less, for more range (`cells.Shifts`)."""

CHANNELS = "q8ta_channels"
"""Of a call: the divisors of its channels, and the terms subtracted from them (calibrate/equalize.py)."""


def note(target: Node | GraphModule, name: str, value: Any) -> None:
    """Adds a note to a node or a program."""
    target.meta["custom"] = {**target.meta.get("custom", {}), name: value}


def noted(target: Node | GraphModule, name: str, default: Any = None) -> Any:
    """A note of a node or a program, or the default if it has none."""
    return target.meta.get("custom", {}).get(name, default)
