"""Model: a fused int8 graph with its weights, independent of any device."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, replace
from pathlib import Path

from q8ta_wgpu.errors import GraphError, InputError, counted, shown
from q8ta_wgpu.ir.graph import Graph, TensorType
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import file
from q8ta_wgpu.model.report import Report
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import MAX_ELEMENTS, RUNNABLE, verify


@dataclass(frozen=True, repr=False)
class Input(TensorType):
    """The type of a model's input.

    Attributes:
        given: the dtype of the arrays that a call takes, as numpy names it: float32, uint8, bool, int8, int16. The
            graph holds uint8 as int8x4 that is 128 less, and bools as int8x4 of 0 and 1.
    """

    given: str = "float32"

    def __repr__(self) -> str:
        return f"{self.given}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Model:
    """What `compile` makes and a .q8ta file holds: the runnable graph and the structure of the outputs."""

    graph: Graph
    structure: Structure

    def __post_init__(self) -> None:
        if not (isinstance(self.graph, Graph) and isinstance(self.structure, Structure)):
            found = f"{type(self.graph).__name__} and {type(self.structure).__name__}"
            raise InputError(f"a Model is made of a Graph and a Structure, by compile or load; found {found}")

    def __repr__(self) -> str:
        def listed(names: list[str]) -> str:
            return ", ".join(map(self.graph.described, names))

        batch = next((f" at batch {t.shape[0]}" for name, t in self.inputs.items() if name in self.graph.batched), "")
        nodes = counted(len(self.graph.nodes), "node")
        return f"Model({listed(self.graph.inputs)} -> {listed(self.graph.outputs)}{batch}; {nodes})"

    @property
    def inputs(self) -> dict[str, Input]:
        """Type of every input by name, in order."""
        types = ((name, self.graph.types[name]) for name in self.graph.inputs)
        return {name: Input(t.shape, t.dtype, t.q, str(self.graph.given(name))) for name, t in types}

    @property
    def outputs(self) -> list[TensorType]:
        """Type of every output in order, with `q`, its scale and zero point, where it is int8 or int16."""
        return [self.graph.types[name] for name in self.graph.outputs]

    def report(self) -> Report:
        """What runs in int8, what stays in float32 and why; print it."""
        return Report.of(self.graph)

    def save(self, path: str | Path) -> None:
        """Writes a .q8ta file; an existing file is replaced only once the new one is complete."""
        file.save(self.graph, self.structure, _path(path, "save"))

    def export_web(self, folder: str | Path, target: Target = BASELINE) -> Path:
        """Writes the model for web pages: `q8ta_wgpu.web.export.export_web`, whose arguments and errors these are."""
        from q8ta_wgpu.web.export import export_web

        return export_web(self, _path(folder, "export_web", "a folder"), target)

    def rebatch(self, size: int) -> Model:
        """The same model for another batch: the first dimension of every batched input.

        Raises InputError where the batch was fixed by the export, or as `reshape` does.
        """
        batched = self.graph.batched
        if not batched:
            raise InputError(
                "the batch of this model is fixed: quantize(..., dynamic_batch=True) makes one for any, reshape takes "
                "the sizes of every input"
            )
        return self.reshape(*((size, *t.shape[1:]) if name in batched else t.shape for name, t in self.inputs.items()))

    def reshape(self, *shapes: tuple[int, ...]) -> Model:
        """The same model for inputs of other sizes: one shape per input, in order.

        Numbers of the program stay, but for shapes and sizes that follow from the input's. A slice that takes all of a
        dimension takes all of another; what may or may not be counted from the size is refused.

        Raises InputError where the network does not fit them or a value or dispatch would be too large, naming the
        node.
        """
        if len(shapes) != len(self.graph.inputs):
            raise InputError(
                f"reshape takes one tuple of sizes for each input ({', '.join(self.graph.inputs)}), found {len(shapes)}"
            )
        graph = self.graph.copy()
        for name, shape in zip(graph.inputs, shapes, strict=True):
            old = graph.types[name]
            try:
                sizes = tuple(operator.index(d) for d in shape)
            except TypeError:
                raise InputError(
                    f"the shape of input {name} must be a tuple of integers, found {shown(shape)}"
                ) from None
            if len(sizes) != len(old.shape) or not all(0 < size <= MAX_ELEMENTS for size in sizes):
                raise InputError(
                    f"input {name} has {len(old.shape)} dimensions {old.shape}, each from 1 to {MAX_ELEMENTS}, found "
                    f"{shown(shape)}"
                )
            graph.types[name] = replace(old, shape=sizes)
        wanted = ", ".join(shown(tuple(shape)) for shape in shapes)
        batch = next((graph.types[name].shape[0] for name in graph.inputs if name in graph.batched), None)
        if batch is not None:
            graph.nodes = [replace(n, attrs={"size": batch}) if n.op == "expand_batch" else n for n in graph.nodes]
        for node in graph.nodes:
            types = tuple(graph.types[i] for i in node.inputs)
            try:
                shape, _ = OPS[node.op].check(types, node.attrs)
                graph.types[node.output] = replace(graph.types[node.output], shape=shape)
            except GraphError as error:
                what = f"{node.output}{node.origin}"
                raise InputError(f"the model cannot take inputs of {wanted}: {what}: {error}") from None
        try:
            verify(graph, RUNNABLE)
        except GraphError as error:
            raise InputError(f"the model cannot take inputs of {wanted}: {error}") from None
        return Model(graph, self.structure)


def load(path: str | Path) -> Model:
    """Reads a .q8ta file.

    Raises ModelFileError for a file that is missing, unreadable, truncated, foreign, of another version, altered
    (its checksum differs), or whose graph breaks a rule; InputError where `path` is no path.
    """
    return Model(*file.load(_path(path, "load")))


def _path(path: object, verb: str, what: str = "a .q8ta file") -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{verb} takes the path of {what}, found {type(path).__name__}")
    return Path(path)
