"""Why a value of a network is stored as it is: one entry of the record that quantizing writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Why values that share a scale are stored as they are for those who read them in one role.

    Attributes:
        values: their names, first the one that is computed first.
        role: who reads them: weighted "sums", "products" of two values, "steps" such as an order, or "others".
        width: "int8", "int16" or "float32".
        by: what decided: the name of a rule; "plan" where the operators around the value say it; "noise" where the
            search for the fewest bits did; "cheap" where more bits cost next to nothing.
        reason: why, as a report says it; empty for the plan's 8 bits.
        matched: the names of all rules that matched.
        noise: the noise that rounding it to `narrow` makes in the outputs, relative to what they should have at most;
            None where no such noise was predicted, since `narrow` suffices everywhere.
        cost: what the width costs, in bytes moved: an estimate that counts multiply-adds as bytes.
        narrow: the width that it would have without regard to noise: "int8", or "int16" where a rule or the operators
            around it ask for that.
        source: the place in the user's model that computes the first value; empty where it is not known.
    """

    values: tuple[str, ...]
    role: str
    width: str
    by: str
    reason: str = ""
    matched: tuple[str, ...] = ()
    noise: float | None = None
    cost: float = 0.0
    narrow: str = "int8"
    source: str = ""

    @property
    def is_widened(self) -> bool:
        """Whether more bits were decided on than the operators around the values ask for."""
        return self.by != "plan"

    @property
    def how(self) -> str:
        """How the values are stored."""
        return "is not rounded" if self.width == "float32" else f"is stored in {self.width}"

    @property
    def note(self) -> str:
        """A sentence of a report on a value that is widened."""
        alone = "here alone they would make {} the noise that the outputs should have at most"
        noise = f": {alone.format(share_of(self.noise))}" if self.noise else ""
        place = f" ({self.source})" if self.source else ""
        return f"{self.values[0]}: {self.how} {self.reason}{noise}, for {size_of(self.cost)} more{place}"

    def __str__(self) -> str:
        others = f", at one scale with {', '.join(self.values[1:])}" if self.values[1:] else ""
        by, reason = _BY.get(self.by, f"the rule {self.by!r}"), f", {self.reason}" if self.reason else ""
        noise, bits = "no noise was predicted: 8 bits suffice, or nothing was searched", in_bits(self.narrow)
        if self.noise is not None:
            noise = f"{bits} alone would make {share_of(self.noise)} the noise that the outputs should have at most"
        lines = [
            f"{self.values[0]} {self.how} for {_READERS.get(self.role, self.role)}{others}",
            f"decided by {by}{reason}",
            f"rules that matched: {', '.join(self.matched) or 'none'}",
            noise,
            f"costs {size_of(self.cost)} more to move than 8 bits" if self.cost else "costs nothing more",
        ]
        return "\n  ".join(lines)


def in_bits(width: str) -> str:
    """A width in words."""
    return f"{width.removeprefix('int')} bits"


def share_of(noise: float) -> str:
    """Noise, relative to other noise, in words that go before it: "22 % of", "2.7 times" or "1,200 times"."""
    if noise < 0.995:
        return f"{100 * noise:.2g} % of"
    return f"{noise:.2g} times" if noise < 9.5 else f"{noise:,.0f} times"


def size_of(cost: float) -> str:
    """A number of bytes in words."""
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"


_READERS = {
    "sums": "weighted sums",
    "products": "products of two values",
    "steps": "steps, such as an order",
    "others": "other readers",
}
"""Who reads a value, by role."""

_BY = {
    "plan": "the operators around it",
    "noise": "its noise",
    "cheap": "its cost",
    "asked for": "the precision",
}
"""What decided, other than rules."""
