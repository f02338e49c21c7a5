"""Model: a fused int8 graph with its weights, independent of any device."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from pathlib import Path

from q8ta_wgpu import hub
from q8ta_wgpu.errors import GraphError, InputError, ModelFileError, check_switch, counted, nearest, shown
from q8ta_wgpu.ir.graph import Graph, TensorType
from q8ta_wgpu.model import file
from q8ta_wgpu.model.report import Report
from q8ta_wgpu.model.resize import resized
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import MAX_ELEMENTS, RUNNABLE, verify


@dataclass(frozen=True, repr=False)
class Input(TensorType):
    """The type of a model's input.

    Attributes:
        array_dtype: numpy's name of the dtype of arrays to pass: float32, int32, uint8, bool, int8, int16. The graph
            stores uint8 as int8x4 with 128 subtracted, and bools as int8x4 of 0 and 1. An int32 input takes integers of
            any dtype.
        bounds: for an int32 input, the smallest and the largest number that it takes.
    """

    array_dtype: str = "float32"
    bounds: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"{self.array_dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Model:
    """A runnable int8 graph with its weights and the structure of its outputs: what `compile` makes and a .q8ta file
    holds.

    Examples:
        >>> print(model.report())       # what runs in int8, what does not, and why
        >>> model.save("net.q8ta")
        >>> shapes = {name: type.shape for name, type in model.inputs.items()}
    """

    graph: Graph
    structure: Structure

    def __post_init__(self) -> None:
        if not (isinstance(self.graph, Graph) and isinstance(self.structure, Structure)):
            found = f"{type(self.graph).__name__} and {type(self.structure).__name__}"
            raise InputError(f"a Model is made of a Graph and a Structure, by compile or load; found {found}")

    def __repr__(self) -> str:
        def listed(names: list[str]) -> str:
            return ", ".join(map(self.graph.described, names))

        nodes = counted(len(self.graph.nodes), "node")
        return f"Model({listed(self.graph.arguments)} -> {listed(self.graph.results)}; {nodes})"

    @property
    def inputs(self) -> dict[str, Input]:
        """The type of each input by name, in order: its shape, its dtype in the graph, and that of arrays to pass."""
        types = ((name, self.graph.types[name]) for name in self.graph.arguments)
        return {
            name: Input(t.shape, t.dtype, t.q, str(self.graph.array_dtype(name)), self.graph.values[name].bounds)
            for name, t in types
        }

    @property
    def outputs(self) -> list[TensorType]:
        """The type of each output, in order. `q` has the scale and zero point of an int8 or int16 output."""
        return [self.graph.types[name] for name in self.graph.results]

    def report(self, details: bool = False) -> Report:
        """Counts of operators in int8 and in float32, with reasons, to print: a line for each reason, with `details`
        for each value."""
        check_switch("details", details)
        return Report.of(self.graph, details)

    def explain(self, value: str | None = None) -> str:
        """Why a value is stored as it is, or every value of the network that was quantized: how many bits it has for
        those who read it, which rules matched and what decided, the noise that 8 bits would make, and the cost.

        Args:
            value: its name in the network that was quantized, or in this graph.

        Raises InputError if it is the name of no stored value, or the model was quantized by another quantizer, which
        leaves no record.
        """
        return explained(self.graph, value)

    def save(self, path: str | Path) -> None:
        """Writes a .q8ta file. An existing file is replaced once the new one is complete. Raises ModelFileError."""
        file.save(self.graph, self.structure, path_of(path, "save"))

    def reshape(self, *shapes: tuple[int, ...]) -> Model:
        """The same model for inputs of other sizes, without torch.

        Examples:
            >>> n, c, h, w = x.shape
            >>> larger = model.reshape((n, c, 2 * h, 2 * w))

        Args:
            shapes: one shape for each input, in order.

        Returns:
            A new Model. Shapes are computed from the inputs, and so are attributes that are known to be sizes. A slice
            over a full dimension stays one.

        Raises:
            InputError: the network does not fit the shapes, may contain numbers that were computed from a size that
                changes, or a value or dispatch would be too large; names the node.
        """
        if len(shapes) != len(self.graph.arguments):
            raise InputError(
                f"reshape takes one tuple of sizes for each input ({', '.join(self.inputs)}), found {len(shapes)}"
            )
        sizes = [
            _sizes(name, self.graph.types[name], shape)
            for name, shape in zip(self.graph.arguments, shapes, strict=True)
        ]
        try:
            graph = resized(self.graph, sizes)
            verify(graph, RUNNABLE)
        except GraphError as error:
            wanted = ", ".join(map(shown, sizes))
            raise InputError(f"the model cannot take inputs of {wanted}: {error}") from None
        return Model(graph, self.structure)


def load(path: str | Path, revision: str | None = None) -> Model:
    """Reads a .q8ta file. Needs no torch.

    Examples:
        >>> model.save("net.q8ta")
        >>> session = q8.Session(q8.load("net.q8ta"))

    Args:
        path: the path of a file, or its address on the Hugging Face Hub, `hf://owner/name/net.q8ta`.
        revision: of a file on the Hub, the branch, tag or commit; None for the main branch.

    Raises:
        ModelFileError: the file is missing, unreadable, truncated, of another kind or version, altered (its checksum
            differs), or its graph breaks a rule; or it cannot be had from the Hub.
        InputError: `path` is neither a path nor an address, or `revision` is given for a path.
        UnsupportedError: a file on the Hub, and huggingface_hub is missing.
    """
    return Model(*file.load(path_of(hub.local(path, revision, ModelFileError), "load")))


def explained(graph: Graph, value: str | None) -> str:
    """The decisions about a value, by its name in the float graph or in this one; without a value all of them. Raises
    InputError if there are none."""
    known = dict.fromkeys(name for decision in graph.decisions for name in decision.values)
    if not known:
        raise InputError("the model has no record of what was decided: q8ta_wgpu.quantize writes one")
    name = value
    if value is not None and value not in known:  # what is made of a value is called "value.stored", "value.real", ...
        name = max((each for each in known if value.startswith(f"{each}.")), key=len, default=None)
        if name is None:
            if value in graph.types and graph.types[value].q is None:
                raise InputError(
                    f"{shown(value)} has dtype {graph.types[value].dtype} in this model, so no bits were decided for "
                    "it; if it is a float island between int8 values, print(model.report()) has the reason"
                )
            near = ", ".join(nearest(value, known))
            raise InputError(f"no stored value is called {shown(value)}; nearest to it: {near}")
    return "\n".join(str(each) for each in graph.decisions if name is None or name in each.values)


def _sizes(name: str, old: TensorType, shape: object) -> tuple[int, ...]:
    """A requested shape. Raises InputError if an input of this type cannot have it."""
    try:
        sizes = tuple(operator.index(d) for d in shape)  # type: ignore[attr-defined]
    except TypeError:
        raise InputError(f"the shape of input {name} must be a tuple of integers, found {shown(shape)}") from None
    if len(sizes) != len(old.shape) or not all(0 < size <= MAX_ELEMENTS for size in sizes):
        raise InputError(
            f"input {name} has {len(old.shape)} dimensions {old.shape}, each from 1 to {MAX_ELEMENTS}, found "
            f"{shown(shape)}"
        )
    return sizes


def path_of(path: object, verb: str, what: str = "a .q8ta file") -> Path:
    """The path that a caller gave to a function called `verb`. Raises InputError where it is none that a system has: an
    empty one would be the current folder."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InputError(f"{verb} takes the path of {what}, found {type(path if text is None else text).__name__}")
    if not text or "\0" in text:
        raise InputError(f"{verb} takes the path of {what}, found {shown(text)}: name one")
    return Path(text)
