"""Opens a model on a device: chooses the device, plans the model for it and loads its program."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import INT8, RANGES, Graph
from q8ta_wgpu.ir.int8 import Product, WeightedSum
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program

if TYPE_CHECKING:
    from q8ta_wgpu.runtime.device import Device
    from q8ta_wgpu.runtime.executor import Executor
    from q8ta_wgpu.tuning.tuning_report import Tuning

_PRODUCTS = frozenset(
    f"{width}_{op.name}"
    for op in OPS.values()
    if isinstance(op.int8, WeightedSum | Product)
    for width in ("q8ta", "q16ta")
)
"""Operators that matrix units can compute."""

MATRIX_WORK = 1 << 25
"""A network is opened on an engine with matrix units if one call has at least so many multiply-accumulates. ResNet-50
at batch 1 has such calls: it takes 0.37 ms with units on an NVIDIA H200, 0.44 ms without. MobileNetV2 has none, and
takes equally long with and without."""


@dataclass(frozen=True)
class Opening:
    """Seconds that opening a session took.

    Attributes:
        device: opening the adapter, measuring it and checking its arithmetic, unless an earlier session did so.
        scheduling: choosing layouts and kernels, linking WGSL, packing weights.
        loading: compiling pipelines, making buffers, uploading weights, binding.
    """

    device: float = 0.0
    scheduling: float = 0.0
    loading: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the steps."""
        return self.device + self.scheduling + self.loading

    def __str__(self) -> str:
        return (
            f"device {1e3 * self.device:.0f} ms, scheduling {1e3 * self.scheduling:.0f} ms, "
            f"pipelines and buffers {1e3 * self.loading:.0f} ms"
        )


class Opened:
    """A model's graph on a device, or in the reference.

    Args:
        graph: the model's graph.
        device: as for `Session`.
        layouts: a policy of `sync_layouts`.
        tune: as for `Session`.
        sharing: the executor of the same network for inputs of other sizes, as for `Executor`.

    Attributes:
        device: the opened device; None for the reference.
        executor: runs the program; None for the reference.
        tuning: the result of tuning; None if nothing was tuned.
        took: seconds, by step.

    Raises DeviceError if no adapter matches, or the one that does cannot run the model.
    """

    device: Device | None = None
    executor: Executor | None = None
    tuning: Tuning | None = None
    took = Opening()

    def __init__(self, graph: Graph, device: Any, layouts: str, tune: bool | None, sharing: Executor | None) -> None:
        self._graph = graph
        self._layouts = layouts
        if not (isinstance(device, str) and device == "reference"):
            self._load(device, tune, sharing)

    def _load(self, device: Any, tune: bool | None, sharing: Executor | None) -> None:
        from q8ta_wgpu.runtime.adapters import open_device
        from q8ta_wgpu.runtime.executor import Executor

        started = time.perf_counter()
        self.device = open_device(device, matrix_work=_has_matrix_work(self._graph))
        if any(t.dtype in (INT8, *RANGES) for t in self._graph.types.values()) and self.device.contract:
            raise DeviceError(
                f"{self.device.name} cannot run int8 models: {self.device.contract}. Use another backend or "
                "device='reference'; a newer driver may help"
            )
        self.device.check_loops()
        opened = time.perf_counter()
        if tune is not False:
            self.tuning = self._tuned(self.device, tune)
        program = self.program
        scheduled = time.perf_counter()
        self.executor = Executor(program, self.device, sharing)
        loaded = time.perf_counter()
        self.took = Opening(opened - started, scheduled - opened, loaded - scheduled)

    def _tuned(self, device: Device, tune: bool | None) -> Tuning | None:
        from q8ta_wgpu.tuning import tuner

        if not (tune or tuner.wanted(device)):
            return None
        graph = lower(self._graph, replace(self._target, copies_windows=False))
        return tuner.tune(graph, device, self._layouts, budget=None if tune else tuner.BUDGET)

    @property
    def name(self) -> str:
        """'adapter (backend, engine)', or 'reference'."""
        return self.device.name if self.device else "reference"

    @property
    def _target(self) -> Target:
        return self.device.target if self.device else BASELINE

    @functools.cached_property
    def program(self) -> Program:
        """The program on the device; for the reference, the program for a device with WebGPU's baseline limits."""
        graph = self.tuning.graph if self.tuning else lower(self._graph, self._target)
        plan = self.tuning.plan if self.tuning else sync_layouts(graph, self._target, self._layouts)
        program = build(graph, self._target, plan)
        faults = self.device.unit_faults if self.device else {}
        return replace(program, notes=tuple(f"matrix unit {unit} is not used: {text}" for unit, text in faults.items()))


def _has_matrix_work(graph: Graph) -> bool:
    """Whether a graph has an int8 product large enough for matrix units."""
    calls = (graph.call(node) for node in graph.nodes if node.op in _PRODUCTS)
    return any(OPS[call.op].macs(call) >= MATRIX_WORK for call in calls)
