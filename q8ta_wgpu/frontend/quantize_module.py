"""quantize: a float module to an int8 program."""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import InputError, check_items, check_switch, warn
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.attributes import Attributes, changed_buffers
from q8ta_wgpu.frontend.calibrate import faults
from q8ta_wgpu.frontend.calibrate.equalize import enough, equalize, taken
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer, check_quantizer
from q8ta_wgpu.frontend.calibrate.threads import few_threads
from q8ta_wgpu.frontend.compile import compile
from q8ta_wgpu.frontend.export.buffers_as_inputs import States
from q8ta_wgpu.frontend.export.dimensions import Dimensions, dimensions
from q8ta_wgpu.frontend.export.formulas import annotate, check_ends, check_points
from q8ta_wgpu.frontend.export.lifted import lifted
from q8ta_wgpu.frontend.export.modes import aloud, computing, quietly
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.export.own_copy import own_copy
from q8ta_wgpu.frontend.fixed_sizes import fixed_sizes
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_whole
from q8ta_wgpu.frontend.notes import ASKED, FIXED, PRECISION, SIZES, SKIPPED, note
from q8ta_wgpu.frontend.on_graph import OnGraph
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.size import Point
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.from_onnx import FILES, File
from q8ta_wgpu.onnx_import.quantize_onnx import OPTIONS
from q8ta_wgpu.onnx_import.quantize_onnx import quantize as quantize_file
from q8ta_wgpu.progress import bar

_STEPS = 4
"""Steps of the progress bar besides calibration items: export, fold, find what is stored, convert."""


@overload
def quantize(
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    calibration: Iterable[torch.Tensor | Sequence[torch.Tensor]],
    quantizer: Quantizer | None = None,
    progress: bool = True,
    dynamic_batch: bool = False,
    unsupported: str = "error",
    dynamic_shapes: Any = None,
) -> ExportedProgram: ...


@overload
def quantize(
    module: File,
    example_inputs: None = None,
    calibration: Iterable[Any] = (),
    *,
    sizes: Mapping[str, int | tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    residual: str = "int16",
    skip: Sequence[str] = (),
    fit_weights: bool = True,
    precision: str = "auto",
    progress: bool = True,
) -> Model: ...


def quantize(
    module: Any,
    example_inputs: Any = None,
    calibration: Iterable[Any] = (),
    quantizer: Quantizer | None = None,
    progress: bool = True,
    dynamic_batch: bool = False,
    unsupported: str = "error",
    dynamic_shapes: Any = None,
    **of_file: Any,
) -> ExportedProgram | Model:
    """Quantizes a float module statically. It changes neither the module nor any tensor passed to it.
    `module` may also be a float ONNX file, its path or bytes. It is then quantized to a Model, by
    `q8ta_wgpu.onnx_import.quantize_onnx`.

    Examples:
        >>> exported = q8.quantize(module, (x,), calibration=[x, 2 * x])    # some dozens of real inputs, in practice
        >>> model = q8.compile(exported)

    Args:
        module: in eval mode.
        example_inputs: positional arguments: float32, integer or bool tensors. They determine the shapes.
        calibration: representative inputs. Each item is a tensor or a tuple of arguments, of the example's shapes, or
            of any sizes that `dynamic_shapes` allows. It is iterated once. The
            first 128 items are held in memory (up to half a gigabyte), later ones one at a time. Up to 8 items,
            those that are simulated, are held whatever their size.
        quantizer: by default `Quantizer()`. What torchao's `prepare_pt2e` and `convert_pt2e` make with any PT2E
            quantizer, `compile` takes.
        dynamic_batch: whether the first dimension of every input is a batch of any size: `dynamic_shapes` that name it.
        progress: whether to show a progress bar, from export to quantized weights, on stderr if that is a terminal.
        unsupported: what to do with operators that `compile` would refuse: 'error', or 'torch', which leaves them as
            they are for `compile(..., unsupported="torch")`. Inputs may then have any dtype.
        dynamic_shapes: dimensions of inputs that may have any size (batches, lengths, heights and widths), as
            torch.export takes them: `{"ids": {1: torch.export.Dim("T", max=128)}}`. A session then accepts the sizes
            that arrive. The module is traced at three or more sizes. If it has tables made for a size, such as
            positions or a causal mask, the example's size is the largest. With `Dim.AUTO` and `Dim.DYNAMIC`, dimensions
            that are equal in the example stay equal.
        of_file: of an ONNX file `sizes`, `constants`, `residual`, `skip`, `fit_weights` and `precision`; modules have
            most of these in their quantizer.

    Returns:
        An exported program with quantize and dequantize nodes and int8 weights, for `compile`.

    Warns (UserWarning) of layers whose values are so small, or vary so little, that int8 makes them constant, of a
    calibration with only zeros, and of outputs whose predicted accuracy is low.

    Raises:
        InputError: the module is in training mode, is not float32, holds NaN or infinities, or cannot run on the
            example; an argument is invalid; the calibration is empty, or an item is unlike the example or holds or
            causes NaN or infinities.
        UnsupportedError: the module cannot be exported, holds operators that `compile` would refuse, changes its
            inputs, or buffers and attributes that it computes with, or does not follow the sizes in `dynamic_shapes`.
    """
    if isinstance(module, FILES):
        given = {"quantizer": quantizer, "dynamic_batch": dynamic_batch, "dynamic_shapes": dynamic_shapes}
        given |= {"unsupported": unsupported != "error"}
        wrong = [*(name for name, value in given.items() if value), *(name for name in of_file if name not in OPTIONS)]
        if wrong:
            raise InputError(
                f"{wrong[0]} is for modules: an ONNX file takes {', '.join(OPTIONS[:-1])} and {OPTIONS[-1]}"
            )
        return quantize_file(module, example_inputs, calibration, progress=progress, **of_file)
    if of_file:
        raise InputError(f"{next(iter(of_file))} is for ONNX files: a module takes a quantizer and dynamic_shapes")
    checks.check_module(module)
    check_quantizer(quantizer)
    check_switch("progress", progress)
    check_switch("dynamic_batch", dynamic_batch)
    whole = checks.is_whole(unsupported)
    example, items = checks.example(example_inputs, whole), check_items(calibration)
    sizes = _sizes(module, example, dynamic_batch, dynamic_shapes, whole)
    asked = _Asked(module, example, items, quantizer or Quantizer(), whole)
    device = example[0].device if example else None
    with computing(device), quietly(), bar("quantizing", shown=progress) as update:
        program, problem = _quantized(asked, sizes, update)
    if problem:
        warn(problem)
    return program


@dataclass(frozen=True)
class _Asked:
    """The arguments of `quantize` after their checks. `whole`: whether all of the module is to run on the GPU."""

    module: torch.nn.Module
    example: checks.Tensors
    items: Iterable[Any]
    quantizer: Quantizer
    whole: bool


def _sizes(
    module: torch.nn.Module, example: checks.Tensors, dynamic_batch: bool, dynamic_shapes: Any, whole: bool
) -> Dimensions | None:
    """The sizes that inputs may have; None if they have one. Raises InputError for options that exclude each other."""
    if dynamic_shapes is None and not dynamic_batch:
        return None
    if dynamic_shapes is not None and dynamic_batch:
        raise InputError("dynamic_shapes is not for dynamic_batch (name the batch there)")
    if not whole:
        option = "dynamic_batch" if dynamic_batch else "dynamic_shapes"
        raise InputError(f'{option} is not for unsupported="torch", whose pieces have the sizes of the example')
    if dynamic_batch and any(x.dim() == 0 for x in example):
        raise InputError("dynamic_batch needs inputs with a first dimension, found a scalar")
    batch = [{0: torch.export.Dim("batch")} for _ in example] if dynamic_batch else dynamic_shapes
    return dimensions(module, example, batch)


def _quantized(
    asked: _Asked, sizes: Dimensions | None, update: Callable[[int, int, str], None]
) -> tuple[ExportedProgram, str]:
    """The int8 program, and a warning for the user; empty if there is none."""
    count = operator.length_hint(asked.items, 0)
    shown = count and count + _STEPS
    with ExitStack() as stack:
        update(0, shown, "exporting the module")
        module, changed = _own(asked, stack)
        example = asked.example if sizes is None else _enlarged(module, asked.example, sizes, not changed)
        source, program = Traceable.exported(module, example, changed, asked.whole)
        states = source.states
        update(1, shown, "folding constants and batch norms")
        graph = source.folded(program, asked.whole)
        fixed = list[tuple[int, int, int, str]]()
        if asked.whole:
            read = import_whole(graph)
            stack.enter_context(few_threads(read))
            fixed = _fixed(source, program, read, sizes)
        fold_norms(graph)
        update(2, shown, "finding what is stored")
        held = list[checks.Tensors]()
        follows = _Following(source, asked.quantizer, sizes, held) if sizes is not None else None
        left = _checked(asked, states, follows)
        held += enough(graph, left) if asked.quantizer.fit_weights else ()
        buffers = states.buffers if states else {}
        way = OnGraph(_edited(asked.quantizer, follows, held, graph), asked.quantizer, buffers)
        met, zeros = way.calibrate(
            itertools.chain(taken(held), left), lambda index: update(3 + index, shown, "calibrating")
        )
        if not met:
            raise InputError("the calibration is empty: give an iterable of representative inputs")
        if states and states.lost:  # of a value that is observed, calibrate says where it was computed
            raise InputError(states.lost)
        update(3 + met, shown and 4 + met, "choosing scales and quantizing weights")
        lost = way.quantize()
        int8 = lifted(way.module, program, buffers)
    _note(int8, asked, fixed, way.said, follows)
    if follows is not None:
        update(4 + met, shown, "trying other sizes")
        compile(int8)
    return int8, faults.ZEROS if zeros else lost


def _own(asked: _Asked, stack: ExitStack) -> tuple[torch.nn.Module, list[str]]:
    """A copy of the module, and the names of the buffers that it changes. The user's module, which calibration then
    runs, is restored when the stack is closed."""
    module = own_copy(asked.module)
    if not (changed := changed_buffers(module, asked.example)):
        return module, changed
    stack.enter_context(_stateful)
    stack.callback(Attributes(asked.module).put_back)
    return own_copy(asked.module), changed


def _checked(asked: _Asked, states: States | None, follows: _Following | None) -> Iterator[checks.Tensors]:
    """The items of the calibration, with the states before each. Each is checked when it is taken: tables may have
    limited the sizes by then."""
    items = (
        checks.calibration_item(item, i, asked.example, follows.sizes if follows else None)
        for i, item in enumerate(aloud(asked.items))
    )
    return iter(states.carried(items, asked.module) if states else items)


def _note(
    program: ExportedProgram,
    asked: _Asked,
    fixed: Sequence[tuple[int, int, int, str]],
    said: tuple[Any, ...],
    follows: _Following | None,
) -> None:
    """Notes with a program what the report and `compare` say of it."""
    notes = {
        ASKED: asked.quantizer.precision,
        FIXED: fixed,
        PRECISION: said,
        SKIPPED: list(asked.quantizer.skip),
        SIZES: follows and follows.sizes.of_program(program).plain,
    }
    for name, found in notes.items():
        if found:
            note(program.graph_module, name, found)


def _edited(
    quantizer: Quantizer,
    follows: Callable[[GraphModule], None] | None,
    held: Sequence[checks.Tensors],
    graph: GraphModule,
) -> GraphModule:
    """A float graph as the quantizer wants it, annotated with the formulas of sizes, its channels equalized by the
    inputs that are held."""
    found = quantizer.transform_for_annotation(graph)
    if follows is not None:
        follows(found)
    if held:
        equalize(found, held)
    return found


_stateful = threading.RLock()
"""Held while a module with states is calibrated. Its own buffers then change, since the generator of the items may set
them back, and another thread would take them for the initial ones."""


def _enlarged(module: torch.nn.Module, example: checks.Tensors, sizes: Dimensions, checks_run: bool) -> checks.Tensors:
    """The example that is traced. With `checks_run`, raises UnsupportedError unless the module runs on it."""
    found = sizes.enlarged(example)
    if checks_run and [x.shape for x in found] != [x.shape for x in example]:
        check_points(module, example, sizes, sizes.points[:1])
    return found


def _fixed(
    source: Traceable, program: ExportedProgram, first: Graph, sizes: Dimensions | None
) -> list[tuple[int, int, int, str]]:
    """The dimensions of inputs that cannot change freely, except for those that are declared dynamic and those of
    states."""
    free = {(index, dim) for index, dim, _ in sizes.sizes} if sizes is not None else set()
    for index, x in enumerate(source.inputs):
        of_state = source.states is not None and index >= len(source.inputs) - len(source.states.names)
        free |= {(index, dim) for dim in range(x.dim()) if of_state}
    with quietly():
        module = source.module if source.states is None else None
        trace = lambda x: source.folded(source.program(inputs=x))  # noqa: E731
        return fixed_sizes(program, first, module, trace, source.inputs, free)


class _Following:
    """Annotates the nodes of a module, as a quantizer transforms it, with formulas for the numbers that follow from
    sizes."""

    def __init__(
        self,
        source: Traceable,
        quantizer: Quantizer,
        sizes: Dimensions,
        held: Sequence[checks.Tensors],
    ) -> None:
        self.sizes, self._source, self._quantizer, self._held = sizes, source, quantizer, held

    def __call__(self, model: GraphModule) -> None:
        module, inputs = self._source.module, self._source.inputs
        buffers = self._source.states.names if self._source.states is not None else ()
        check_points(module, inputs, self.sizes, self.sizes.points[1:], buffers)
        others = [self._traced(point) for point in self.sizes.points[1:]]
        self.sizes = annotate(model, self.sizes, others)
        self.sizes = check_ends(module, model, inputs, self.sizes)
        for index, item in enumerate(self._held):  # tables may have limited the sizes
            checks.check_sizes(item, index, self.sizes)

    def _traced(self, point: Point) -> GraphModule:
        """The module, as the quantizer transforms it, for inputs of the sizes at a point."""
        traced = self._source.graph(self.sizes.at(self._source.inputs, point))
        return self._quantizer.transform_for_annotation(traced)
