"""A program for inputs of several sizes as the graphs that it becomes at some of them."""

from __future__ import annotations

from collections.abc import Callable

from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.frontend.export.dimensions import UNBOUNDED, Dimensions
from q8ta_wgpu.frontend.export.formulas import at
from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.frontend.notes import SIZES, noted
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.size import Dynamic, Point, Size
from q8ta_wgpu.model.structure import Structure


def import_sizes(
    program: ExportedProgram | GraphModule,
) -> tuple[list[Graph], Structure, tuple[Point, ...], Dynamic, Callable[[], Graph] | None]:
    """The graph of a program, and those at other sizes of its inputs where it may have any; the structure of its
    outputs; the values of the sizes' symbols for each graph; what the sizes are; and what imports the graph of the
    largest sizes, where all are bounded. Raises as `import_program`."""
    graph, structure = import_program(program)
    if not isinstance(program, ExportedProgram) or (said := noted(program.graph_module, SIZES)) is None:
        return [graph], structure, ({},), Dynamic(), None
    found = Dimensions.of(said)
    here = found.points[0]

    def imported(point: Point) -> Graph:
        return import_program(at(program, found, point))[0]

    inputs = {(graph.inputs[index], dim): Size(terms, here) for index, dim, terms in found.sizes}
    dynamic = Dynamic(dict(found.ranges), inputs)
    most = {symbol: high for symbol, (_, high) in found.ranges.items()}
    largest = None if UNBOUNDED in most.values() else lambda: imported(most)
    return [graph, *map(imported, found.points[1:])], structure, found.points, dynamic, largest
