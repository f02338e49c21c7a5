"""Memory of results is used again once nothing refers to it, and freed with its owner."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime import reused
from testbed import insides


def test_memory_of_results_is_used_again_when_nothing_refers_to_them() -> None:
    memory = reused.Reused()
    shape = (3, reused.LEAST // 4)
    first, second = memory.empty(shape, np.float32), memory.empty(shape, np.float32)
    assert first.shape == shape and first.dtype == np.float32 and not np.shares_memory(first, second)
    place, kept = first.ctypes.data, second[1:, ::2].view(np.int32)
    del first, second
    third, fourth = memory.empty((3 * reused.LEAST,), np.int8), memory.empty(shape, np.float32)
    assert third.ctypes.data == place, "of other shape and dtype, but as many bytes"
    assert not np.shares_memory(fourth, kept), "a view refers to it"
    assert memory.empty((5,), np.float32).flags.owndata, "small ones are the C library's"


HELD: dict[str, Callable[[Array], object]] = {
    "an element's view": lambda y: y[1:2, :1],
    "other byte order": lambda y: y.view(">f4"),
    "a subclass": lambda y: y.view(np.recarray),
    "a buffer": lambda y: y.data.cast("B")[8:],
    "an array of a buffer": lambda y: np.frombuffer(y.data, np.uint8),
    "a pickled buffer": lambda y: pickle.PickleBuffer(y.data).raw(),
    "DLPack": lambda y: y.__dlpack__(),
    "ctypes": np.ctypeslib.as_ctypes,
    "the base": lambda y: y.base,
    "the last base": lambda y: last_base(y),
    "an array of the last base": lambda y: np.asarray(last_base(y)),
}


def last_base(array: Any) -> Any:
    """What is found by following bases, and exporters of buffers, to the end."""
    while (base := getattr(array, "base", getattr(array, "obj", None))) is not None:
        array = base
    return array


@pytest.mark.parametrize("how", HELD)
def test_memory_of_results_is_not_used_again_while_anything_refers_to_it(how: str) -> None:
    memory = reused.Reused()
    result = memory.empty((4, reused.LEAST), np.float32)
    place, held = result.ctypes.data, HELD[how](result)
    del result
    assert memory.empty((4, reused.LEAST), np.float32).ctypes.data != place
    del held
    both = [memory.empty((4, reused.LEAST), np.float32) for _ in range(2)]
    assert place in [each.ctypes.data for each in both]


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_memory_of_results_is_freed_with_its_owner_also_while_one_is_held(how: str) -> None:
    memory = reused.Reused()
    first, second = (memory.empty((reused.LEAST,), np.int8) for _ in range(2))
    place = weakref.ref(second.base)
    (free,) = map(weakref.ref, insides.free(memory).values())
    del second
    kept = free()
    assert place() is None and kept is not None and len(kept) == 1
    del kept
    if how == "closed":
        memory.close()
        assert memory.empty((reused.LEAST,), np.int8).flags.owndata
    else:
        del memory
    assert free() is None
    first[:] = 1
    del first


def test_closing_while_another_thread_takes_memory_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = reused.Reused()

    class Closing(dict[int, Any]):
        def setdefault(self, key: int, default: Any = None) -> Any:
            memory.close()
            return super().setdefault(key, default)

    monkeypatch.setattr(memory, "_free", Closing())
    assert memory.empty((reused.LEAST,), np.int8).size == reused.LEAST
    assert not insides.free(memory)


@pytest.mark.parametrize(("size", "kept"), [(reused.LEAST, 16), (40 << 20, 6), (200 << 20, 2)])
def test_so_much_memory_of_results_is_kept(size: int, kept: int) -> None:
    memory = reused.Reused()
    arrays = [memory.empty((size,), np.int8) for _ in range(20)]
    del arrays
    assert len(insides.free(memory)[size]) == kept
