"""Quantizes a traced module by our quantizer: what is rounded, and how, is decided on the float graph by
`quantization/`, and written into torch's graph once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.algebra import ALGEBRA
from q8ta_wgpu.frontend.calibrate import faults
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.export.states import keep_sums
from q8ta_wgpu.frontend.read_float import float_program
from q8ta_wgpu.frontend.run import TorchRunner
from q8ta_wgpu.frontend.write_qdq import write_qdq
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.items import how_many, in_order
from q8ta_wgpu.quantization.precision import Precision, Precisions, least
from q8ta_wgpu.quantization.record import write_record
from q8ta_wgpu.quantization.stored import Shares

Tensors = tuple[Tensor, ...]


@dataclass
class OnGraph:
    """A float graph on its way to int8.

    Args:
        module: the float graph, as the quantizer transforms it. It is quantized in the end.
        own: the quantizer.
        buffers: what the states of the module begin with, by name.

    Attributes:
        precision: the choice of widths, once it was made.
    """

    module: GraphModule
    own: Quantizer
    buffers: Mapping[str, Tensor]
    precision: Precision = field(default_factory=Precision)

    def __post_init__(self) -> None:
        self.own.keep_skipped(self.module)
        keep_sums(self.module)
        self.program = float_program(self.module)
        self._named: dict[str, Node] = {node.name: node for node in self.module.graph.nodes}
        own = self.own
        self.calibration = Calibration(
            self.program, own.streams, own.fit_weights, group=own.group, by_rows=own.dynamic, algebra=ALGEBRA
        )
        self._kept: list[Tensors] = []
        self._exact: list[list[Array]] = []
        weights = dict.fromkeys(node.inputs[1] for node in self.calibration.sums.values())
        sources = (moved.source if (moved := self.program.moved.get(name)) else name for name in weights)
        faults.check_weights(self.module, (self._node(name) for name in sources if name in self.program.names))

    def calibrate(self, items: Iterator[Tensors], update: Callable[[int], None]) -> tuple[int, bool]:
        """Meets the values of every item.

        Returns:
            The number of items, and whether all were zeros.

        Raises:
            InputError: one leads to NaN or an infinity.
        """
        runner, count, zeros = TorchRunner(self.program, self.module), 0, True
        wanted = [name for name in self.calibration.wanted if name in self.program.names]
        watched = set(map(self._node, wanted))
        for index, item in self._in_order(items, runner):
            update(count)
            zeros = zeros and not any(x.any() for x in item)
            with faults.finite(self.module, watched, item, index, self.buffers):
                values = runner.values(item, wanted)
                self.calibration.meet(runner.inputs(item), index, values)
            if len(self._exact) < len(self._kept):
                self._exact.append(values.results())
            count += 1
        return count, zeros

    def _in_order(self, items: Iterator[Tensors], runner: TorchRunner) -> Iterator[tuple[int, Tensors]]:
        """All items with their places, those that are simulated last."""

        def simulated(item: Tensors) -> Callable[[int], int]:
            if self.own.precision == "int8":
                return lambda _: 0
            return how_many(self.program.graph, runner.inputs(item), quick=True)

        for place, item, keep in in_order(items, simulated, _copied, self.calibration.hold_out):
            self._kept += [item] if keep else []
            yield place, item

    def quantize(self) -> str:
        """Chooses widths and writes quantizes into the module. Returns a warning about values that int8 does not keep;
        empty if there is none. Raises InputError for values that have no range."""
        faults.check_ranges(self.module, self._met(), self.buffers)
        self.precision = self._chosen()
        self._graph = self.calibration.quantized(self.precision.chosen)
        values = self.calibration.values
        write_record(self._graph, values, self.precision, values.readings)
        lost = faults.lost_values(self._met(self.precision))
        write_qdq(self.module, self.program, self._graph, values.given)
        return lost or self.precision.warning(": Quantizer(skip=[...])")

    def _chosen(self) -> Precision:
        if self.own.precision == "int8":
            return least(self.calibration)
        found = Precisions(self.calibration, TorchRunner(self.program, self.module, self._kept, self._exact))
        return found.wide() if self.own.precision == "int16" else found.choose()

    @property
    def said(self) -> tuple[Any, ...]:
        """What the report says of the choice, as notes.PRECISION has it, by torch's names."""
        return said_of(self.precision, self._graph, self.program.names)

    def _node(self, value: str) -> Node:
        """Torch's node of a value."""
        return self._named[self.program.names[value]]

    def _met(self, chosen: Precision | None = None) -> Iterator[faults.Met]:
        """What calibration met of the values that are stored."""
        values = self.calibration.values
        met = [stored for stored in values.stored if not isinstance(stored, Shares)]
        for stored, name in ((s, n) for s in met for n in s.values if n in self.program.names):
            widths = {stored.width_for(edge, chosen.chosen) for edge in stored.roles} if chosen else {stored.width}
            if "int8" in widths or "int16" in widths:
                steps = 255 if "int8" in widths else 2**16 - 1
                yield faults.Met(self._node(name), stored.met.low, stored.met.high, steps)


def _copied(item: Tensors) -> Tensors:
    return tuple(x.clone() for x in item)


def said_of(found: Precision, quantized: Graph, names: Mapping[str, str]) -> tuple[Any, ...]:
    """What the report says of a choice of widths and the graph that it led to, as notes.PRECISION has it, by torch's
    names."""

    def called(name: str) -> str:
        return names.get(name, name)

    unrounded = tuple((called(n), known.unrounded) for n, known in quantized.values.items() if known.unrounded)
    decisions = (replace(each, values=tuple(map(called, each.values))) for each in quantized.decisions)
    numbers = (found.output, found.yardstick, found.int8, found.predicted)
    return unrounded, tuple(map(astuple, decisions)), *numbers
