"""What stands in the place of a function for the length of a test."""

from __future__ import annotations

from typing import Any

import pytest


def failing(patch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException | type[BaseException]) -> None:
    """A function of a module, a class or an object ends with an error, whatever it is given."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    patch.setattr(owner, name, fails)


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of a function, which does what it did before. Of a method they begin with its object
    where the owner is a class."""
    calls: list[tuple[Any, ...]] = []
    original = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    patch.setattr(owner, name, call)
    return calls
