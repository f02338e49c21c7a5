"""quantize: a float module to an int8 program, with PT2E."""

from __future__ import annotations

import inspect
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple
from typing import Any, overload

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import InputError, UnsupportedError, check_switch
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.calibrate.equalize import enough
from q8ta_wgpu.frontend.calibrate.fit_weights import round_weights, watch_inputs
from q8ta_wgpu.frontend.calibrate.precision import HeldBack, Precision, Precisions
from q8ta_wgpu.frontend.calibrate.preparing import converted, prepared, transformed
from q8ta_wgpu.frontend.calibrate.pt2e import Quantizer as TorchaoQuantizer
from q8ta_wgpu.frontend.calibrate.pt2e import quietly
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.calibrate.recurrent_states import scale_states, watch_states
from q8ta_wgpu.frontend.calibrate.row_scales import insert_rows
from q8ta_wgpu.frontend.calibrate.simulate import Storage
from q8ta_wgpu.frontend.calibrate.states import mark_states, share_states, store_finely
from q8ta_wgpu.frontend.calibrate.steps import by_rows, widths
from q8ta_wgpu.frontend.calibrate.threads import few_threads
from q8ta_wgpu.frontend.calibrate.widen import widen
from q8ta_wgpu.frontend.export.decompose import decomposed
from q8ta_wgpu.frontend.export.dimensions import Dimensions, dimensions
from q8ta_wgpu.frontend.export.folding import fold, fold_batches
from q8ta_wgpu.frontend.export.formulas import annotate, check_ends, check_points
from q8ta_wgpu.frontend.export.lifted import lifted
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.export.plain import is_plain
from q8ta_wgpu.frontend.export.rewrite import rewrite
from q8ta_wgpu.frontend.export.simplify import simplify
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.export.states import States
from q8ta_wgpu.frontend.export.tracing import torch_lock, traced
from q8ta_wgpu.frontend.fixed_sizes import fixed_sizes
from q8ta_wgpu.frontend.hybrid.dynamo import register
from q8ta_wgpu.frontend.importer.importer import check_module, import_decomposed
from q8ta_wgpu.frontend.nodes import constant
from q8ta_wgpu.frontend.notes import FIXED, PRECISION, SIZES, note, noted
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.from_onnx import FILES, File
from q8ta_wgpu.onnx_import.quantize import quantize as quantize_file
from q8ta_wgpu.progress import bar

_STEPS = 4
"""What is done once: export, fold, place observers, convert."""


@overload
def quantize(
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    calibration: Iterable[torch.Tensor | Sequence[torch.Tensor]],
    quantizer: TorchaoQuantizer | None = None,
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
    residual: str = "int16",
    fit_weights: bool = True,
    progress: bool = True,
) -> Model: ...


def quantize(
    module: Any,
    example_inputs: Any = None,
    calibration: Iterable[Any] = (),
    quantizer: TorchaoQuantizer | None = None,
    progress: bool = True,
    dynamic_batch: bool = False,
    unsupported: str = "error",
    dynamic_shapes: Any = None,
    **of_file: Any,
) -> ExportedProgram | Model:
    """Quantizes a float module statically with PT2E. It changes neither the module nor any tensor passed to it. A float
    ONNX file, its path or bytes, it quantizes as `q8ta_wgpu.onnx_import.quantize` says, to a Model.

    Examples:
        >>> exported = q8.quantize(module, (x,), calibration=[x, 2 * x])    # some dozens of real inputs, in practice
        >>> model = q8.compile(exported)

    Args:
        module: in eval mode.
        example_inputs: positional arguments: float32, integer or bool tensors. They fix the shapes.
        calibration: representative inputs. Each item is a tensor or a tuple of arguments, of the example's shapes, or
            of any sizes that `dynamic_shapes` names, or batch with `dynamic_batch`. It is iterated once. The first 128
            items are held in memory (up to half a gigabyte), later ones one at a time.
        quantizer: any torchao PT2E quantizer; by default `Quantizer()`.
        dynamic_batch: whether the first dimension of every input is a batch of any size. A session then takes the size
            that arrives.
        progress: show a progress bar over all of it, from export to quantized weights, on stderr if that is a terminal.
        unsupported: what to do with operators that `compile` would refuse: 'error', or 'torch', which leaves them as
            they are for `compile(..., unsupported="torch")`. Inputs may then have any dtype.
        dynamic_shapes: dimensions of inputs that may have any size, batches, lengths, heights and widths, as
            torch.export takes them: `{"ids": {1: torch.export.Dim("T", max=128)}}`. A session then takes the sizes that
            arrive. The module is traced at three sizes and more. Where it holds tables made for a size, such as
            positions or a causal mask, that of the example is the largest. With `Dim.AUTO` and `Dim.DYNAMIC`,
            dimensions that are equal in the example stay equal.
        of_file: `sizes`, `residual` and `fit_weights` of an ONNX file.

    Returns:
        An exported program with quantize and dequantize nodes and int8 weights, for `compile`.

    Warns (UserWarning) of layers whose values are so small, or vary so little, that int8 makes them constant, of a
    calibration that is zeros alone, and of outputs that are predicted to keep little signal.

    Raises:
        InputError: the module is in training mode, is not float32, holds NaN or infinities, or cannot run on the
            example; an argument is invalid; the calibration is empty, or an item is unlike the example or holds or
            causes NaN or infinities.
        UnsupportedError: the module cannot be exported, holds operators that `compile` would refuse, changes its
            inputs, or buffers and attributes that it computes with, or does not follow the sizes in `dynamic_shapes`.
    """
    if isinstance(module, FILES):
        given = {"quantizer": quantizer, "dynamic_batch": dynamic_batch, "dynamic_shapes": dynamic_shapes}
        if wrong := [name for name, value in given.items() if value]:
            raise InputError(f"{wrong[0]} is for modules: an ONNX file takes sizes, residual and fit_weights")
        return quantize_file(module, example_inputs, calibration, progress=progress, **of_file)
    if of_file:
        raise InputError(f"{next(iter(of_file))} is for ONNX files: a module takes a quantizer and dynamic_shapes")
    checks.check_module(module)
    checks.check_quantizer(quantizer, TorchaoQuantizer)
    check_switch("progress", progress)
    check_switch("dynamic_batch", dynamic_batch)
    whole = checks.is_whole(unsupported)
    example, items = checks.example(example_inputs, whole), checks.calibration_items(calibration)
    sizes = None if dynamic_shapes is None else dimensions(module, example, dynamic_shapes)
    if sizes is not None and (dynamic_batch or not whole):
        other = "dynamic_batch (name the batch there)" if dynamic_batch else 'unsupported="torch"'
        raise InputError(f"dynamic_shapes is not for {other}")
    count = operator.length_hint(items, 0)
    total = count and count + _STEPS
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        bar("quantizing", shown=progress) as update,
        ExitStack() as stack,
    ):
        warnings.simplefilter("ignore")
        update(0, total, "exporting the module")
        refused = {
            'unsupported="torch"': not whole,
            "dynamic_batch": dynamic_batch,
        }
        states = _states(
            module, checks.check_runs(module, example), example, [n for n, given in refused.items() if given]
        )
        if states:
            stack.callback(checks.Attributes(module).put_back)
            functional, traced, kept = states.functional, (*example, *states.initial), len(states.names)
        else:
            functional, traced, kept = module, batched(example) if dynamic_batch else example, 0
        program = float_program(functional, traced, dynamic_batch, whole)
        update(1, total, "folding constants and batch norms")
        graph = _folded(program, kept)
        stack.enter_context(few_threads(graph))
        if whole and dynamic_batch:
            check_module(graph)
        if whole:
            checks.check_floats(graph)
        with quietly():
            follow = {(index, dim) for index, dim, _ in sizes.sizes} if sizes is not None else set()
            follow |= {(index, 0) for index, x in enumerate(traced) if dynamic_batch and x.dim()}
            follow |= {(index, dim) for index in range(len(example), len(traced)) for dim in range(traced[index].dim())}
            fixed = whole and fixed_sizes(
                program,
                graph,
                lambda inputs: _folded(float_program(functional, inputs, dynamic_batch, whole=False), kept),
                traced,
                follow,
            )
        fold_norms(graph)
        update(2, total, "placing observers")
        quantizer = quantizer or Quantizer()
        fits = isinstance(quantizer, Quantizer) and quantizer.fit_weights
        precision = quantizer.precision if isinstance(quantizer, Quantizer) else "int8"
        dynamic = isinstance(quantizer, Quantizer) and quantizer.dynamic
        checked = (checks.calibration_item(item, i, example, sizes, dynamic_batch) for i, item in enumerate(items))
        left = iter(states.carried(checked) if states else checked)
        held = enough(graph, left) if fits else []
        with torch_lock():  # quantizers may trace patterns
            follows = _Following(functional, traced, kept, quantizer, sizes, held) if sizes is not None else None
            observed = prepared(graph, quantizer, held, follows)
        sizes = follows.sizes if follows is not None else None  # for the items that are not held yet
        share_states(observed)
        watch_states(observed)
        if fits:
            watch_inputs(observed)
        observed.recompile()
        every = itertools.chain(_taken(held), left)
        back = HeldBack(observed, example, precision == "int16") if precision != "int8" else None
        met, zeros = _calibrate(observed, every, back, lambda index: update(3 + index, total, "calibrating"))
        update(3 + met, total and 4 + met, "choosing scales and quantizing weights")
        quantized, lost, found = _converted(observed, program, fits, back, states, dynamic)
        said = {
            FIXED: fixed,
            PRECISION: found and astuple(found),
            SIZES: follows and follows.sizes.of_program(quantized).plain,
        }
        for name, value in said.items():
            if value:
                note(quantized.graph_module, name, value)
    register()
    if problem := checks.ZEROS if zeros else lost or (found.warning if found else ""):
        warnings.warn(problem, stacklevel=2)
    return quantized


class _Following:
    """Notes with the nodes of a module, as a quantizer annotates it, which of their numbers follow from sizes."""

    def __init__(
        self,
        module: torch.nn.Module,
        example: checks.Tensors,
        states: int,
        quantizer: TorchaoQuantizer,
        sizes: Dimensions,
        held: Sequence[checks.Tensors],
    ) -> None:
        self.sizes, self._module, self._example, self._held = sizes, module, example, held
        self._trace = lambda point: transformed(
            float_graph(float_program(module, sizes.at(example, point), whole=False), states), quantizer
        )

    def __call__(self, model: GraphModule) -> None:
        check_points(self._module, self._example, self.sizes)
        self.sizes = annotate(model, self.sizes, self._trace)
        check_ends(self._module, model, self._example, self.sizes)
        for index, item in enumerate(self._held):  # sizes may go up to a table's alone
            checks.check_sizes(item, index, self.sizes)


def _calibrate(
    observed: GraphModule, items: Iterable[checks.Tensors], back: HeldBack | None, update: Callable[[int], None]
) -> tuple[int, bool]:
    """Runs a module with observers on every item, those that are held back last; returns how many there were, and
    whether all were zeros. Raises InputError where there is none, or one leads to NaN or an infinity."""
    met, zeros = 0, True
    run = _observe_tables(observed)
    for index, arguments in back.order(items) if back is not None else enumerate(items):
        update(met)
        zeros = zeros and not any(x.any() for x in arguments)
        with checks.finite(observed, arguments, index):
            run(*arguments)
        met += 1
    if not met:
        raise InputError("the calibration is empty: give an iterable of representative inputs")
    return met, zeros


def _observe_tables(observed: GraphModule) -> Callable[..., Any]:
    """What runs a module with observers, at the sizes of what it is given where these are noted. Observers of tables of
    which a part is read then meet them whole, since no item may be as large."""
    tables = [node for node in observed.graph.find_nodes(op="get_attr") if "shape" in noted(node, SIZES, {})]
    for table in tables:
        for user in table.users:
            if user.op == "call_module":
                observed.get_submodule(str(user.target))(constant(observed, table))
    return Sized(observed).run if any(noted(node, SIZES) for node in observed.graph.nodes) else observed


def _converted(
    observed: GraphModule,
    program: ExportedProgram,
    fits: bool,
    back: HeldBack | None,
    states: States | None,
    dynamic: bool,
) -> tuple[ExportedProgram, str, Precision | None]:
    """The int8 program of a calibrated module, what int8 makes constant in it, and what was widened by the items that
    were held back. `dynamic`: the device chooses a scale for each row that a linear reads."""
    checks.check_ranges(observed)
    scale_states(observed)
    precisions = Precisions(observed, back, dynamic) if back is not None else None
    if fits:
        _round_weights(observed, precisions)
    precision = precisions.choose() if precisions is not None else None
    if precisions is None and dynamic:
        storage = Storage(observed)
        widen(observed, storage, widths(by_rows(storage)))
    store_finely(observed)
    lost = checks.lost_values(observed)
    int8 = converted(observed)
    fold(int8, quantizing=True)
    if dynamic:
        insert_rows(int8)
    buffers = dict(zip(states.names, states.initial, strict=True)) if states else {}
    return lifted(int8, program, buffers), lost, precision


def _states(module: torch.nn.Module, names: list[str], example: checks.Tensors, options: list[str]) -> States | None:
    """The buffers of these names, which forward changes, if there are any; `options` are given that keep none."""
    if not names:
        return None
    if options:
        raise UnsupportedError(
            f"the module changes its buffers {', '.join(names)}, which stay on the device from call to call: with "
            f"{options[0]} nothing does, so make them inputs and results"
        )
    return States(module, names, example)


def _round_weights(observed: GraphModule, precisions: Precisions | None) -> None:
    """Fits weights and biases to what was met, unless that is worse than rounding to the nearest: a bias that is
    corrected for the mean is wrong for tokens of zeros, which a network may divide by their norm."""
    rounded = round_weights(observed)
    for restore in (rounded.restore_biases, rounded.restore_weights):
        if precisions is None or not precisions.is_worse():
            break
        restore()


def _taken(items: list[checks.Tensors]) -> Iterator[checks.Tensors]:
    """The items of a list, which keeps none of them."""
    items.reverse()
    while items:
        yield items.pop()


def batched(example: checks.Tensors) -> checks.Tensors:
    """Inputs with a batch of at least two, since one would be traced as a fixed size."""
    if any(x.dim() == 0 for x in example):
        raise InputError("dynamic_batch needs inputs with a first dimension, found a scalar")
    return tuple(torch.cat([x, x]) if x.shape[0] == 1 else x for x in example)


def _batch_shapes(module: torch.nn.Module, arguments: checks.Tensors) -> Any:
    """torch's dynamic shapes of arguments that share a batch; a module's `*args` are one entry of them."""
    batch = torch.export.Dim("batch")
    shapes: list[Any] = [{0: batch} for _ in arguments]
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
        shapes[named:] = [tuple(shapes[named:])]
    return tuple(shapes)


def float_program(
    module: torch.nn.Module, example: checks.Tensors, dynamic_batch: bool = False, whole: bool = True
) -> ExportedProgram:
    """The module exported, without in-place operators. `whole` refuses what `compile` would."""
    shapes = _batch_shapes(module, example) if dynamic_batch else None
    try:
        with torch_lock():
            program = traced(lambda: torch.export.export(module, example, dynamic_shapes=shapes))
            simplify(program)
            rewrite(program)
            if not is_plain(program):
                program = decomposed(program)
    except Exception as error:
        raise checks.untraceable(error) from error
    signature = program.graph_signature
    for what, mutated in (("buffers", signature.buffers_to_mutate), ("inputs", signature.user_inputs_to_mutate)):
        if mutated:
            raise UnsupportedError(
                f"the module changes its {what} {', '.join(mutated.values())}: compute new tensors instead (no "
                "inplace=True on an input)"
            )
    if whole:
        checks.check_random(program.graph)
        if not dynamic_batch:  # of a batch of any size more is folded first
            import_decomposed(program)
    return program


def float_graph(program: ExportedProgram, states: int = 0) -> GraphModule:
    """A float program as it is quantized: with what depends on no input computed, and batch norms folded where that is
    right. Its last inputs are so many states."""
    graph = _folded(program, states)
    fold_norms(graph)
    return graph


def _folded(program: ExportedProgram, states: int = 0) -> GraphModule:
    graph: GraphModule = program.module(check_guards=False)
    fold(graph)
    if states:
        mark_states(graph, states)
    if program.range_constraints:
        fold_batches(graph)
    return graph
