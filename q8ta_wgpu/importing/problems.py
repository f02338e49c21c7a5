"""The reasons why a program cannot be imported."""

from __future__ import annotations

from q8ta_wgpu.errors import UnsupportedError, counted


class Problems:
    """The reasons why a program cannot be imported. Equal causes share a line, in the order in which they were found.

    Args:
        way_out: what the user may do about operators, the last sentences of the message.

    Attributes:
        places: by an operator's name (empty for inputs) and the reason, where in the user's program it stands.
    """

    def __init__(self, way_out: str) -> None:
        self._way_out = way_out
        self.places: dict[tuple[str, str], list[str]] = {}

    def add(self, operator: str, reason: str, place: str) -> None:
        """Adds a problem of a call or an input."""
        self.places.setdefault((operator, reason), []).append(place)

    def check(self) -> None:
        """Raises UnsupportedError if there are problems."""
        if self:
            raise UnsupportedError(f"cannot import this program:\n{self}\n{self._way_out}")

    def __bool__(self) -> bool:
        return bool(self.places)

    def __str__(self) -> str:
        return "\n".join(f"  {_line(*cause, places)}" for cause, places in self.places.items())


def _line(operator: str, reason: str, places: list[str]) -> str:
    if not operator:
        return reason
    more = f" and {counted(len(places) - 1, 'more call')}" if len(places) > 1 else ""
    return f"{operator} at {places[0]}{more}: {reason}"
