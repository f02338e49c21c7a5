"""What is noted with a program or with one of its nodes. torch keeps it as "custom" in what is converted, exported and
saved, which JSON must be able to hold."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

FIXED = "q8ta_fixed"
"""With a program: the dimensions of inputs from which the network computes numbers, as (input, dimension, step, why);
see `Graph.fixed`."""

PRECISION = "q8ta_precision"
"""With a program: what was stored in more than 8 bits, and what the outputs are predicted to keep; a `Precision` of
calibrate/precision.py as a tuple."""

SIZES = "q8ta_dynamic"
"""What follows from sizes of inputs (export/formulas.py). With a program: its `Dimensions`. With a call: its operator,
and of arguments that are sizes the place and the terms. With a parameter: the terms of its shape. With an input: its
dimensions that have many sizes, and the terms of each."""

IN_FLOAT = "q8ta_kept"
"""With a call: that it stays in float32."""

TRANSFORM = "q8ta_transform"
"""With a call: that it computes another operator, without weights of the network (`nodes.is_transform`)."""

SHIFTS = "q8ta_shifts"
"""With a recurrent layer: how many fraction bits fewer its states have, for more range (`cells.Shifts`)."""

CHANNELS = "q8ta_channels"
"""With a call: what its channels were divided by, and what was taken from them (calibrate/equalize.py)."""


def note(place: Node | GraphModule, name: str, said: Any) -> None:
    """Notes something with a node or a program."""
    place.meta["custom"] = {**place.meta.get("custom", {}), name: said}


def noted(place: Node | GraphModule, name: str, default: Any = None) -> Any:
    """What was noted with a node or a program."""
    return place.meta.get("custom", {}).get(name, default)
