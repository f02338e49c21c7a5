"""What part of the tests runs. `make test` meets a sample, in minutes; `make test-all` everything."""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from testbed.devices import BACKENDS

T = TypeVar("T")

EVERYTHING = os.environ.get("Q8TA_TEST_EVERYTHING", "") not in ("", "0")
"""Whether nothing is left out."""

QUICK = os.environ.get("Q8TA_TEST_QUICK", "") not in ("", "0")
"""Whether only what needs neither torch nor onnx nor a device runs, in this process or another, and TEN operators'
first cases."""

TEN = {"conv2d", "conv_transpose2d", "linear", "matmul", "add", "mul", "gelu", "mean", "max_pool2d", "permute"}
"""Operators that `make quick` meets on a device: each kind of kernel."""

DEVICES = {"device", "vulkan", "swiftshader", "tint", "chromium", "node"}
"""Fixtures that open a device, or a page that does."""

STARTS_PYTHON = "starts_python"
"""The mark of tests that start other processes of Python, to run tests, to quantize or to build a wheel: four of them
took a fifth of the time of `make quick`."""

_SLOW = re.compile(
    r"^\s*(import|from) (torch|onnx|onnxruntime|wgpudawn|demo|examples|tests\.(quantizing|importing)"
    r"|q8ta_wgpu\.frontend|testbed\.(networks|blocks|states|onnx|radv))\b"
    r"|^from tests import oracle|^from testbed import radv",
    re.MULTILINE,
)


def is_slow(path: Path) -> bool:
    """Whether a file of tests imports what takes seconds, torch above all."""
    return path.name.startswith("test_") and _SLOW.search(path.read_text(encoding="utf-8")) is not None


SAMPLED = ("opengl", "swiftshader")
"""Backends that meet a part of what Vulkan meets: the same WGSL goes through the same LLVM, or through Tint, which
meets every module in tests/kernels/test_wgsl.py."""

IN_EIGHT = 8
"""Of the tests of a file, and of the cases of each operator in it, these backends meet the first and every eighth."""

MODELS, IN_TWENTY_FOUR = {"frontend", "onnx_import", "passes"}, 24
"""Folders whose tests make models and run them. Of a folder these backends meet the first and every twenty-fourth."""

IN_THREE = 3
"""The reference computes the model of every module that is compared with torch. One in three of these tests runs it on
a device as well: those whose name has a checksum that three divides. Kernels meet all their cases in tests/kernels."""


def in_turn(found: Sequence[T], turn: int, every: int) -> list[T]:
    """One of so many, beginning with the one whose turn it is; all of them where nothing is left out."""
    return list(found) if EVERYTHING else list(found[-turn % every :: every])


def is_in_turn(name: str, every: int) -> bool:
    """Whether a test of a name is one of so many that do more; each is where nothing is left out."""
    return EVERYTHING or zlib.crc32(name.encode()) % every == 0


def quick(items: Iterable[Any]) -> list[Any]:
    """The tests of `make quick`. Items are pytest's."""

    def kept(item: Any) -> bool:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        first = params.get("device") == BACKENDS[0] and params.get("index") == 0
        basic = first and item.originalname in ("test_single", "test_int8")
        alone = DEVICES.isdisjoint(item.fixturenames) and not any(item.iter_markers(STARTS_PYTHON))
        return alone or (basic and getattr(params.get("op"), "name", "") in TEN)

    return [item for item in items if kept(item)]


def of_sampled_backends(items: Iterable[Any]) -> list[Any]:
    """The tests without those that a sampled backend leaves out. Items are pytest's."""
    met = Counter[tuple[object, ...]]()
    kept = []
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        op = getattr(params.get("op"), "name", None) if "index" in params else None
        models = item.path.parent.name in MODELS
        place = item.path.parent if models else item.path
        key = (place, params.get("device"), op and (item.originalname, op))
        every = IN_TWENTY_FOUR if models else IN_EIGHT
        if EVERYTHING or params.get("device") not in SAMPLED or met[key] % every == 0:
            kept.append(item)
        met[key] += 1
    return kept
