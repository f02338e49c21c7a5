"""A program for inputs of several sizes as the graphs that it becomes at some of them."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.export.dynamic import at
from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.frontend.nodes import DYNAMIC
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.size import Dynamic, Point, Size
from q8ta_wgpu.model.structure import Structure


def import_sizes(program: ExportedProgram | GraphModule) -> tuple[list[Graph], Structure, tuple[Point, ...], Dynamic]:
    """The graph of a program, and those at other sizes of its inputs where it may have any; the structure of its
    outputs; the values of the sizes' symbols for each graph; and what the sizes are. Raises as `import_program`."""
    graph, structure = import_program(program)
    meta = program.graph_module.meta if isinstance(program, ExportedProgram) else program.meta
    said = meta.get("custom", {}).get(DYNAMIC)
    if said is None or not isinstance(program, ExportedProgram):
        return [graph], structure, ({},), Dynamic()
    found = Dimensions.of(said)
    here = found.points[0]
    others = [import_program(at(program, found, point))[0] for point in found.points[1:]]
    inputs = {(graph.inputs[index], dim): Size(terms, here) for index, dim, terms in found.sizes}
    return [graph, *others], structure, found.points, Dynamic(dict(found.ranges), inputs)
