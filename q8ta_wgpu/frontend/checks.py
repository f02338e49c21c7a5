"""What a caller gives to `quantize`, checked before anything long is done: module, example, calibration, quantizer."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, UnsupportedError, counted, one_line, shown
from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.nodes import INPUTS, line_of, module_paths, other_float, source_of

Tensors = tuple[torch.Tensor, ...]


def check_module(module: Any) -> None:
    """Raises InputError unless `module` is one in eval mode, in float32 and with finite parameters."""
    exported = isinstance(module, GraphModule) and module.training  # torch has no eval() for it
    if isinstance(module, ExportedProgram) or exported:
        raise InputError(
            f"expected a torch.nn.Module as it was written, found {type(module).__name__}: give the module it was "
            "exported from, in eval mode (a program that is quantized already is what q8ta_wgpu.compile takes)"
        )
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, found {type(module).__name__}")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(
                f"expected a torch.nn.Module in Python, found a {type(part).__name__}{name and f' at {name}'}, which "
                "torch.export cannot trace: give the module it was scripted or traced from"
            )
    if training := next((name for name, part in module.named_modules() if part.training), None):
        raise InputError(
            f"the module's part {training} is in training mode: call module.eval() first (see Quantizer(qat=True) for "
            "training)"
        )
    if module.training:
        raise InputError(
            "the module is in training mode: call module.eval() first (see Quantizer(qat=True) for training)"
        )
    for name, tensor in module.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"the module's {name} has no shape yet: run the module once on example_inputs")
        if tensor.is_meta:
            raise InputError(f"the module's {name} is on the meta device: load its values first")
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if tensor.dtype != torch.float32:
            raise InputError(f"the module's {name} is {tensor.dtype}: int8 is made from float32, call module.float()")
        if not torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all():
            raise InputError(f"the module's {name} holds NaN or infinity: train again, or load other values")
    for name, buffer in module.named_buffers():  # an infinity may be meant, in a mask
        if not buffer.is_meta and buffer.is_floating_point() and buffer.isnan().any():
            raise InputError(f"the module's buffer {name} holds NaN: train again, or load other values")


def is_whole(unsupported: Any) -> bool:
    """Whether operators that are not supported are an error. Raises InputError for what is no such choice."""
    if not isinstance(unsupported, str) or unsupported not in ("error", "torch"):
        raise InputError(f"unsupported must be 'error' or 'torch', found {shown(unsupported)}")
    return bool(unsupported == "error")


def example(example_inputs: Any, whole: bool = True) -> Tensors:
    """Copies of the arguments that fix the shapes: torch.export makes one input of a tensor that is given twice, and
    takes the size of a view for one that may vary. Raises InputError unless they are tensors with values, and, of what
    runs as a whole on the GPU, float32, bools or integers of a dtype that the network computes with."""
    if not isinstance(example_inputs, (tuple, list)) or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        listed = isinstance(example_inputs, (tuple, list))
        found = [type(x).__name__ for x in example_inputs] if listed else type(example_inputs).__name__
        way = "write (torch.from_numpy(x),)" if "ndarray" in found else "write (x,)"
        if listed and "ndarray" not in found:
            way = "wrap the module in one whose forward takes tensors alone, and holds or makes the others"
        raise InputError(f"example_inputs must be a tuple of torch tensors, found {found}: {way}")
    for position, x in enumerate(example_inputs):
        if whole and x.dtype not in INPUTS:
            wanted = "float32, bool, or int64, int32, int16, int8 or uint8"
            raise InputError(f"example input {position} must be {wanted}, found {x.dtype}: {_way_out(x)}")
        if kind := _without_values(x):
            raise InputError(f"example input {position} is {kind}: give a dense tensor with values")
    return tuple(x.detach().clone() for x in example_inputs)


def _way_out(x: torch.Tensor) -> str:
    """The way out for an input of a dtype that does not run on the GPU."""
    if x.is_floating_point():
        return "write x.float()"
    if x.is_complex():
        return "write torch.view_as_real(x)"
    return "write x.long() (token numbers), x.bool() (masks), or x.float() (quantities)"


def _without_values(x: torch.Tensor) -> str:
    """What keeps a tensor from being a dense one with values; empty if nothing."""
    if x.is_nested:  # has no sizes to ask for
        return "nested"
    if x.is_meta:
        return "on the meta device"
    return "empty" if not x.numel() else str(x.layout) if x.layout != torch.strided else ""


def calibration_items(calibration: Any) -> Iterable[Any]:
    """What is iterated over. Raises InputError for what is not, and for one tensor, whose rows would be items."""
    if isinstance(calibration, torch.Tensor) or not isinstance(calibration, Iterable):
        raise InputError(
            f"calibration must be an iterable of inputs, found {type(calibration).__name__}: write [x] for a single one"
        )
    return calibration


def calibration_item(
    item: Any, index: int, wanted: Tensors, sizes: Dimensions | None = None, any_batch: bool = False
) -> Tensors:
    """The arguments of one calibration item, checked against the example: number, shapes, finite values. `sizes`:
    those that inputs may have. `any_batch`: their first dimension may have any."""
    if not isinstance(item, (torch.Tensor, tuple, list)):
        raise InputError(f"calibration item {index} is {type(item).__name__}: give a torch tensor or a tuple of them")
    arguments = (item,) if isinstance(item, torch.Tensor) else tuple(item)
    if len(arguments) != len(wanted):
        raise InputError(
            f"calibration item {index} has {counted(len(arguments), 'argument')}, the module takes {len(wanted)}: give "
            "each item as a tuple of what the module takes (of images with labels: [image for image, _ in loader])"
        )
    free = {(number, dim) for number, dim, _ in sizes.sizes} if sizes is not None else set()
    free |= {(number, 0) for number in range(len(wanted)) if any_batch}
    for number, (argument, one) in enumerate(zip(arguments, wanted, strict=True)):
        if isinstance(argument, torch.Tensor) and (kind := _without_values(argument)):
            raise InputError(f"calibration item {index} is {kind}: give a dense tensor with values")
        if not isinstance(argument, torch.Tensor) or not _is_like(argument, one, number, free):
            found = described([argument]) if isinstance(argument, torch.Tensor) else type(argument).__name__
            way = "dynamic_shapes names dimensions of any size; model.reshape changes those of a compiled model"
            if isinstance(argument, torch.Tensor) and one.dim() and argument.shape[1:] == one.shape[1:]:
                way = f"of larger batches: [x for batch in batches for x in batch.split({one.shape[0]})]"
            if isinstance(argument, torch.Tensor) and argument.dtype != one.dtype:
                way = f"write x.to({one.dtype})"
            raise InputError(
                f"calibration item {index} is {found}, the example input is {described([one])}: "
                f"give torch tensors shaped as example_inputs ({way})"
            )
        if not torch.isfinite(argument).all():
            raise InputError(f"calibration item {index} holds NaN or infinity: clean the calibration data")
    if sizes is not None:
        check_sizes(arguments, index, sizes)
    return arguments


def check_sizes(arguments: Tensors, index: int, sizes: Dimensions) -> None:
    """Raises InputError unless a calibration item has sizes that `dynamic_shapes` names."""
    if isinstance(found := sizes.point([x.shape for x in arguments]), str):
        raise InputError(f"calibration item {index} has other sizes than dynamic_shapes names: {found}")


def _is_like(x: torch.Tensor, one: torch.Tensor, number: int, free: set[tuple[int, int]]) -> bool:
    """Whether the input of this number is like that of the example, but for the sizes of dimensions that are free."""
    pairs = enumerate(zip(x.shape, one.shape, strict=False))
    return (x.dtype, x.dim()) == (one.dtype, one.dim()) and all(a == b or (number, d) in free for d, (a, b) in pairs)


def check_quantizer(quantizer: Any, kind: type) -> None:
    """Raises InputError unless a quantizer is one of torchao's PT2E, or none is given."""
    if quantizer is not None and not isinstance(quantizer, kind):
        found = f"the class {quantizer.__name__}" if isinstance(quantizer, type) else shown(quantizer)
        raise InputError(f"quantizer must be a PT2E quantizer of torchao, found {found}: write q8ta_wgpu.Quantizer()")


def check_runs(module: torch.nn.Module, arguments: Tensors) -> list[str]:
    """The names of the buffers that forward changes. What it changes is put back.

    Raises InputError unless the module runs, UnsupportedError where its results depend on other attributes that it
    changes, or where it changes a buffer's shape.
    """
    if not arguments and not inspect.signature(module.forward).parameters:
        raise InputError("the module takes no inputs, so its results never change: compute them once, without int8")
    before = Attributes(module)
    try:
        first = module(*(x.clone() for x in arguments))
        changed, states = before.changed(), before.states(module)
        again = module(*(x.clone() for x in arguments)) if changed else first
    except UnsupportedError:
        raise
    except Exception as error:
        raise InputError(
            f"the module does not run on example_inputs, {described(arguments)}: {one_line(error)}. quantize calls "
            "module(*example_inputs); wrap a module that takes other arguments in one that takes tensors by position"
        ) from error
    finally:
        before.put_back()
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(again), strict=False)
    if changed and not all(torch.equal(a, b) for a, b in pairs if isinstance(a, torch.Tensor)):
        raise UnsupportedError(
            f"the module changes its {changed} while it runs, and computes with it: what stays from call to call must "
            "be a buffer (register_buffer), or an input and a result"
        )
    return states


class Attributes:
    """What a module holds before it runs: attributes, lists and dicts of them, buffers, and the tensors' values."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._held: list[tuple[str, Any, Any]] = []
        self._buffers = {n: (b, b._version) for n, b in module.named_buffers(remove_duplicate=False)}
        for path, part in module.named_modules():
            lists = [(name, value) for name, value in part.__dict__.items() if isinstance(value, (dict, list))]
            for name, store in [("", part.__dict__), *lists]:
                self._held.append((".".join(filter(None, (path, name))), store, copy.copy(store)))
        tensors = [value for _, _, values in self._held for value in _values(values)]
        self._tensors = [
            (value, value.clone())
            for value in tensors
            if isinstance(value, torch.Tensor)
            and not isinstance(value, torch.nn.Parameter)
            and not _without_values(value)
        ]

    def states(self, module: torch.nn.Module) -> list[str]:
        """The names of buffers that were written into, or are other tensors. Raises UnsupportedError where one has
        another shape or dtype now, is the tensor that another one is now, or shares its memory with another tensor that
        the module holds."""
        values, found = {id(tensor): value for tensor, value in self._tensors}, []
        known, given = set[int](), dict[int, str]()
        for name, tensor in module.named_buffers(remove_duplicate=False):
            buffer, version = self._buffers.get(name, (tensor, tensor._version))
            if id(buffer) in known:
                continue
            known.add(id(buffer))
            if (other := given.setdefault(id(tensor), name)) != name:
                raise UnsupportedError(
                    f"the module gives its buffers {other} and {name} one tensor: keep {other} alone, and read it for "
                    "both"
                )
            before = values.get(id(buffer), buffer)
            if tensor.shape != before.shape:
                raise UnsupportedError(
                    f"the module's buffer {name} changes from shape {tuple(before.shape)} to {tuple(tensor.shape)}: "
                    "what stays from call to call has one size, so give it the largest and write into it"
                )
            if tensor is buffer and buffer._version == version:
                continue
            if before.dtype not in INPUTS or tensor.dtype != before.dtype:
                raise UnsupportedError(
                    f"the module changes its buffer {name} from {before.dtype} to {tensor.dtype}: what stays from call "
                    "to call is float32, integers or bools, of one dtype"
                )
            self._check_memory(name, buffer, tensor)
            found.append(name)
        return found

    def _check_memory(self, name: str, buffer: torch.Tensor, now: torch.Tensor) -> None:
        """Raises UnsupportedError where another tensor of the module lies in the memory of a buffer that changes: each
        would be a copy. Other names of the buffer itself are other names of the state."""
        memory = _memory(buffer)
        for other, value, known in self._values():
            if memory and value is known and value is not now and _memory(value) == memory:
                other = other.replace("_buffers.", "")
                raise UnsupportedError(
                    f"the module changes its buffer {name}, whose memory {other} shares: keep one of them, and compute "
                    f"the other from it in forward ({name}[...])"
                )

    def changed(self) -> str:
        """The first attribute that is another one, or has other values, buffers apart; empty if none."""
        written = {id(tensor) for tensor, value in self._tensors if not torch.equal(tensor, value)}
        for name, value, known in self._values():
            if "_buffers." not in name and (value is not known or id(value) in written):
                return name
        return ""

    def _values(self) -> Iterator[tuple[str, Any, Any]]:
        """The name of each attribute, and of each value in lists and dicts of them, its value and what it was."""
        for path, store, values in self._held:
            for key, value in store.items() if isinstance(store, dict) else enumerate(store):
                known = values.get(key) if isinstance(values, dict) else values[key] if key < len(values) else None
                yield ".".join(filter(None, (path, str(key)))), value, known

    def put_back(self) -> None:
        """Makes all of it what it was."""
        for _, store, values in self._held:
            if _is_same(store, values):
                continue
            if isinstance(store, dict):
                store.clear()
                store.update(values)
            else:
                store[:] = values
        for tensor, value in self._tensors:
            if tensor.shape == value.shape and not torch.equal(tensor, value):
                tensor.copy_(value)


def _memory(value: Any) -> int:
    """The address of a tensor's memory; 0 for all else, and for tensors without memory."""
    if not isinstance(value, torch.Tensor) or _without_values(value) or value.layout != torch.strided:
        return 0
    return value.untyped_storage().data_ptr()


def _is_same(store: Any, values: Any) -> bool:
    """Whether a list or dict holds what its copy does: nothing is put back into one that may refuse writes."""
    same_keys = not isinstance(store, dict) or list(store) == list(values)
    pairs = zip(_values(store), _values(values), strict=False)
    return len(store) == len(values) and same_keys and all(one is other for one, other in pairs)


def _values(store: Any) -> Iterable[Any]:
    return store.values() if isinstance(store, dict) else store


def check_floats(graph: GraphModule) -> None:
    """Raises UnsupportedError where a value that depends on an input is computed in another float than float32."""
    for node in graph.graph.nodes:
        if dtype := other_float(node):
            raise UnsupportedError(
                f"{node.target} at {source_of(node) or node.name} computes in {dtype}: int8 is made from float32, so "
                "make its other operand float32 (.float())"
            )


def check_random(graph: torch.fx.Graph) -> None:
    """Raises UnsupportedError where random numbers are drawn. (The importer tells a dropout that is left on, that of an
    attention too.)"""
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        told = any(name in str(node.target) for name in ("dropout", "attention", "lstm", "gru"))
        if torch.Tag.nondeterministic_seeded in tags and not told:
            raise UnsupportedError(
                f"{node.target} at {source_of(node) or node.name} draws random numbers, which int8 inference does not: "
                "make them an input of the module"
            )


def untraceable(error: Exception) -> UnsupportedError:
    """What torch.export could not trace, with the way out of the usual causes."""
    text = str(error)
    way = "write that part in torch's own operators on tensors"
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        way = (
            "its control flow must not depend on the data: compute both results and choose with torch.where, or "
            "quantize the part of the module that has none (of a detector, what comes before boxes are chosen)"
        )
    elif "register a pytree" in text:
        way = "return tensors in tuples, lists or dicts"
    elif "nn_module_stack metadata" in text:  # of the copy that torch adds for self.table = self.table.contiguous()
        way = "assign no buffer to itself in forward: do that once, in __init__"
    said = one_line(text.partition("\nCaused by:")[0] or type(error).__name__)
    where = line_of((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    at = f" at {where}" if where else ""
    return UnsupportedError(f"torch.export cannot trace the module{at}: {said}. To get on, {way}")


@contextmanager
def finite(prepared: GraphModule, item: Tensors, index: int) -> Iterator[None]:
    """Where observing an item fails inside, an InputError that says where: at a value that is NaN or infinite, or at an
    operator that cannot take it."""
    try:
        yield
    except Exception as error:
        search = _Search(prepared)
        with suppress(Exception):
            search.run(*item)
        if search.found is not None:
            raise _not_finite(search.found, f"calibration item {index}") from error
        if search.failed is None:
            raise
        where = source_of(search.failed) or search.failed.name
        raise InputError(f"calibration item {index} does not run: {one_line(error)} at {where}") from error


def check_ranges(prepared: GraphModule) -> None:
    """Raises InputError where an observer saw NaN or an infinity without failing."""
    for node, _, low, high in _ranges(prepared):
        unseen = bool((low > high).all())  # an observer begins with infinities that enclose nothing
        if not unseen and not (torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise _not_finite(node, "the calibration")


def _ranges(prepared: GraphModule) -> Iterator[tuple[torch.fx.Node, Any, torch.Tensor, torch.Tensor]]:
    """The observers that met something: node, module, and the ends of the range that it met."""
    for node in prepared.graph.nodes:
        observer = prepared.get_submodule(str(node.target)) if node.op == "call_module" else None
        low, high = (getattr(observer, name, None) for name in ("min_val", "max_val"))
        if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor) and low.numel():
            yield node, observer, low, high


ZEROS = (
    "every calibration input is zero: scales are those of what the network computes of zeros, and other inputs will be "
    "clipped. Calibrate with representative inputs"
)
"""What a user is warned of whose calibration says nothing."""


def lost_values(prepared: GraphModule) -> str:
    """Which values quantization makes constant, and the way out; empty where it makes none so.

    Those that vary in the calibration by less than two steps of the finest scale that holds them: they are rounded
    away. What does not vary is none of them.
    """
    lost: list[tuple[torch.fx.Node, str]] = []
    for node, observer, low, high in _ranges(prepared):
        if low.numel() != 1 or not low < high:
            continue
        whole = max(float(high), 0.0) - min(float(low), 0.0)
        steps = (getattr(observer, "quant_max", None) or 127) - (getattr(observer, "quant_min", None) or 0)
        step = max(whole / steps, float(getattr(observer, "eps", 0.0)))
        if float(high - low) < 2 * step:
            text = f"from {float(low):.2g} to {float(high):.2g}, where a step is {step:.2g}"
            lost.append((node.all_input_nodes[0], text))
    if not lost:
        return ""
    value, text = lost[0]
    others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    skip = module_paths(value)[-1:] or ["..."]
    return (
        f"int8 makes the values of {source_of(value) or value.name}{others} constant: in the calibration they go "
        f"{text}. Load trained weights, and scale calibration inputs as in training; or leave such modules in float: "
        f"quantizer=q8ta_wgpu.Quantizer(skip={skip})"
    )


class _Search(Sized):
    """Runs a prepared graph without its observers: `found` is the first of them that would see NaN or an infinity,
    `failed` the operator that cannot run."""

    def __init__(self, prepared: GraphModule) -> None:
        super().__init__(prepared)
        self.found: torch.fx.Node | None = None
        self.failed: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:
        """Of an observer, what it would see."""
        if n.op != "call_module" or not hasattr(self.module.get_submodule(str(n.target)), "calculate_qparams"):
            self.failed = n
            found = super().run_node(n)
            self.failed = None
            return found
        (value,) = self.fetch_args_kwargs_from_env(n)[0]
        if self.found is None and not torch.isfinite(value).all():
            self.found = n
        return value


def _not_finite(observer: torch.fx.Node, where: str) -> InputError:
    node = observer.all_input_nodes[0]
    return InputError(
        f"the value of {node.name} ({source_of(node) or node.target}) is NaN or infinite on {where}: a range cannot "
        "be found for it. Clean the calibration data, or bound the value (torch.clamp)"
    )


def check_arguments(values: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raises InputError unless arguments have the dtypes and sizes of those a program was exported with, a dynamic
    batch the same in all of them; numbers the same value."""
    batches: dict[str, Any] = {}
    for position, (value, like) in enumerate(zip(values, wanted, strict=True)):
        if not isinstance(like, torch.Tensor):
            if getattr(value, "shape", ()) or value != like:  # an array has no one answer
                raise InputError(f"argument {position} must be {shown(like)}, found {shown(value)}")
            continue
        sizes: list[Any] = [d if isinstance(d, int) else batches.get(str(d), "any") for d in like.shape]
        found = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        fits = len(found) == len(sizes) and all(
            n == size or size == "any" for n, size in zip(found, sizes, strict=True)
        )
        if not isinstance(value, torch.Tensor) or value.dtype != like.dtype or not fits:
            other = described([value]) if isinstance(value, torch.Tensor) else shown(value)
            raise InputError(f"argument {position} must be {like.dtype} ({', '.join(map(str, sizes))}), found {other}")
        batches.update({str(d): n for d, n in zip(like.shape, found, strict=True) if not isinstance(d, int)})


def described(tensors: Iterable[torch.Tensor]) -> str:
    """Dtypes and shapes in words."""
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors) or "of which there are none"
