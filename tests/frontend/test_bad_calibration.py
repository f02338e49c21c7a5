"""Calibration data: how q8.quantize reads it, and what it refuses, by the item and what is wrong with it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
from torch import Tensor

import q8ta_wgpu as q8
from tests.quantizing import conv, data


def test_empty_calibration() -> None:
    with pytest.raises(q8.InputError, match="calibration is empty"):
        q8.quantize(conv(3, 4).eval(), (data(1, 3, 5, 5),), calibration=[])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_calibration_that_is_not_finite(bad: float) -> None:
    x = data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match="item 1 holds NaN or infinity"):
        q8.quantize(conv(3, 4).eval(), (x,), calibration=[x, x * bad], progress=False)


def test_calibration_is_streamed() -> None:
    """The first 128 inputs are held, and of the rest one item at a time, however many there are."""
    alive: list[int] = []
    seen: list[weakref.ref[Tensor]] = []

    def items() -> Iterator[Tensor]:
        for i in range(40):
            alive.append(sum(reference() is not None for reference in seen))
            x = data(32, 3, 5, 5, seed=i)
            seen.append(weakref.ref(x))
            yield x

    q8.quantize(conv(3, 4).eval(), (data(32, 3, 5, 5),), calibration=items(), progress=True)
    assert len(alive) == 40
    assert max(alive) <= 5


def test_calibration_that_is_no_iterable_of_inputs() -> None:
    x = data(1, 3, 5, 5)
    for calibration, message in (
        (None, "iterable of inputs, found NoneType"),
        (x, r"write \[x\]"),
        ([None], "item 0 is NoneType"),
        ([x, x.numpy()], "item 1 is ndarray"),
        ({"x": x}, "iterable of inputs, found dict"),
    ):
        with pytest.raises(q8.InputError, match=message):
            q8.quantize(conv(3, 4).eval(), (x,), calibration=calibration, progress=False)  # type: ignore[arg-type]


def test_calibration_with_the_wrong_number_of_arguments() -> None:
    x = data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match=r"item 0 has 2 arguments.*takes 1"):
        q8.quantize(conv(3, 4).eval(), (x,), calibration=[(x, x)], progress=False)


def test_calibration_of_the_wrong_shape() -> None:
    x = data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match=r"item 0.*\(1, 4, 5, 5\)"):
        q8.quantize(conv(3, 4).eval(), (x,), calibration=[data(1, 4, 5, 5)], progress=False)


def test_calibration_of_the_wrong_type_names_the_type() -> None:
    x = data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match=r"item 0 is ndarray, the example input is torch\.float32 \(1, 3, 5, 5\)"):
        q8.quantize(conv(3, 4).eval(), (x,), calibration=[(x.numpy(),)], progress=False)  # type: ignore[list-item]
