"""From a quantized torch.export program to our graph. With quantizer.py, the only module that imports torch."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from q8ta_wgpu.errors import GraphError, UnsupportedError
from q8ta_wgpu.frontend.nodes import integer, place
from q8ta_wgpu.ir.graph import INT8X4, UINT8, Array, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.kernels import ATEN, OPS
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import infer

_logger = logging.getLogger(__name__)
_CONSTANT_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def import_program(program: ExportedProgram | torch.fx.GraphModule) -> tuple[Graph, Structure]:
    """The graph of an exported PT2E program, and the structure of its outputs.

    What holds in-place or unknown operators is functionalized and decomposed first (`run_decompositions({})` keeps
    composite operators such as linear whole).

    Raises:
        UnsupportedError: names every operator that cannot be imported, with module path and source line; also
            mutated buffers, dynamic dimensions other than the batch, inputs that are not float32 tensors.
    """
    exported = _export(program) if isinstance(program, torch.fx.GraphModule) else program
    if not isinstance(exported, ExportedProgram):
        raise UnsupportedError(
            f"expected a torch.export.ExportedProgram, found {type(exported).__name__}: "
            "pass torch.export.export(converted_module, example_inputs)"
        )
    if not all(_is_plain(node) for node in exported.graph.nodes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its pytree classes
            exported = exported.run_decompositions({})
    return _Importer(exported).run()


def _is_plain(node: torch.fx.Node) -> bool:
    """Whether a node is imported as it is: decomposing a program traces it anew, as long as exporting it takes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op in ("placeholder", "output") or target is operator.getitem
    known = str(target) in ATEN or target.namespace == "quantized_decomposed"
    return known and not target._schema.is_mutable


def _export(converted: torch.fx.GraphModule) -> ExportedProgram:
    """Exports what convert_pt2e returned, with zeros of the shapes its placeholders were traced with.

    Exporting again also drops the `_guards_fn` call that torch.export puts into every module it makes.
    """
    values = [node.meta.get("val") for node in converted.graph.nodes if node.op == "placeholder"]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise UnsupportedError(
            "this GraphModule does not know its input shapes: pass torch.export.export(module, example_inputs)"
        )
    example = tuple(torch.zeros([integer(d) for d in v.shape], dtype=v.dtype) for v in values)
    return torch.export.export(converted, example)


_CONVERSIONS = ("aten._to_copy.default", "aten.to.dtype")
_WAY_OUT = (
    "Write these with operators of the table (kernels/README.md), compute them before or after the model, "
    "or add them (CONTRIBUTING.md)."
)


class _RefusedError(Exception):
    """A call that cannot be imported, and why."""


class _Importer:
    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.graph = Graph()
        self.raw: dict[str, Array] = {}
        self.fixed: set[str] = set()
        self.problems: list[str] = []
        self.shifted: set[str] = set()  # values quantized to uint8, held as int8 that is 128 less
        self.source = ""

    # --- what importer functions of the operator table call (op.Builder) ---

    def emit(self, op: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        """Adds a node whose type follows from its inputs."""
        node = Node(
            op, tuple(self._operand(i) for i in inputs), self.graph.fresh(self.hint), dict(attrs or {}), self.source
        )
        for position, name in enumerate(node.inputs):
            operand = OPS[op].operand(position, node.attrs)
            if operand.constant and not self.is_constant(name):
                raise _RefusedError(f"its {operand.name} must follow from parameters alone, but {name} does not")
        self.graph.types[node.output] = infer(self.graph, node)
        self._append(node)
        return node.output

    def _append(self, node: Node) -> None:
        if all(self.is_constant(name) for name in node.inputs):
            self.fixed.add(node.output)
        self.graph.nodes.append(node)

    def constant(self, array: Array, hint: str = "constant") -> str:
        """Adds a constant."""
        return self.graph.add_constant(hint, array)

    def type(self, name: str) -> TensorType:
        """The type of a value."""
        return self.graph.types[self._operand(name)]

    def array(self, name: str) -> Array | None:
        """The array of a constant, None for other values."""
        return self.raw[name] if name in self.raw else self.graph.constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Whether a value depends on constants alone."""
        return name in self.raw or name in self.graph.constants or name in self.fixed

    def aten(self, name: str, args: Mapping[str, Any]) -> Any:
        """What another aten operator becomes with these arguments."""
        return ATEN[name][1](self, args)

    def refuse(self, reason: str) -> Exception:
        """The error to raise when a call cannot be imported."""
        return _RefusedError(reason)

    def _operand(self, name: str) -> str:
        """Parameters and buffers become constants when first read."""
        if name in self.raw and name not in self.graph.types:
            array = self.raw[name]
            if array.dtype.kind == "f":
                array = array.astype(np.float32)
            elif array.dtype != np.int8:
                array = array.astype(np.int32)
            self.graph.types[name] = TensorType(array.shape, str(array.dtype))
            self.graph.constants[name] = np.asarray(array, order="C")
        return name

    # --- the walk ---

    def run(self) -> tuple[Graph, Structure]:
        """Imports every node, then reports all problems at once."""
        signature = self.program.graph_signature
        mutated = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        if mutated:
            raise UnsupportedError(
                f"the program changes {', '.join(mutated)} while it runs: export the module in eval mode, without state"
            )
        values: dict[str, Any] = {}
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                values[node.name] = self._placeholder(node, specs[node.name])
            elif node.op == "call_function" and (node.users or node.name in signature.user_outputs):
                values[node.name] = self._call(node, values)
        outputs = [values.get(name) if isinstance(name, str) else name for name in signature.user_outputs]
        if self.problems:
            listed = "\n".join(f"  {problem}" for problem in self.problems)
            raise UnsupportedError(f"cannot import this program:\n{listed}\n{_WAY_OUT}")
        unsigned = {
            n.name for n in self.program.graph.nodes if getattr(n.meta.get("val"), "dtype", None) == torch.uint8
        }
        for name, found in zip(signature.user_outputs, outputs, strict=True):
            if name is not None and not isinstance(found, str):
                raise UnsupportedError(f"an output is {name!r}: outputs must be tensors or None")
            if found in self.shifted or name in unsigned:
                raise UnsupportedError(f"output {found} is uint8: end the program with its dequantize")
        self.graph.outputs = [self._operand(name) for name in outputs if isinstance(name, str)]
        spec = self.program.call_spec.out_spec
        assert spec is not None
        return self.graph, Structure.of(torch.utils._pytree.tree_unflatten(_numbered(outputs), spec))

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> str:
        if spec.kind in _CONSTANT_KINDS:
            if node.users:
                self.raw[node.name] = self._tensor(spec)
            return node.name
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.uint8):
            found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            self.problems.append(f"input {node.name} must be a float32 or uint8 tensor, found {found}")
            return str(self._placeholder_for(node))
        dynamic = [i for i, d in enumerate(value.shape) if i and not isinstance(d, int)]
        if dynamic:
            self.problems.append(
                f"input {node.name}: dimensions {dynamic} are dynamic, only the batch (dimension 0) may be; "
                "export with fixed sizes and use model.reshape for others"
            )
        self.graph.inputs.append(node.name)
        shape = tuple(integer(d) for d in value.shape)
        if value.dtype == torch.uint8:
            self.graph.uint8.add(node.name)
            self.graph.types[node.name] = TensorType(shape, INT8X4, UINT8)
        else:
            self.graph.types[node.name] = TensorType(shape)
        return node.name

    def _tensor(self, spec: Any) -> Array:
        program, target = self.program, spec.target
        found = program.state_dict.get(target)
        if found is None:
            found = program.constants[target]
        assert isinstance(found, torch.Tensor)
        return np.asarray(found.detach().cpu().contiguous().numpy()).copy()

    def _call(self, node: torch.fx.Node, values: Mapping[str, Any]) -> Any:
        name = str(node.target)
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(index, int)
            parts = values[source.name]
            if isinstance(parts, list) and index >= len(parts):
                self.source, self.hint = place(node), node.name
                self.problems.append(f"{source.target} at {self.source or node.name}: result {index} is not supported")
                return self._placeholder_for(node)
            return parts[index] if isinstance(parts, list) else parts
        if isinstance(node.meta.get("val"), torch.SymInt):
            return integer(node.meta["val"])
        self.source, self.hint = place(node), node.name
        try:
            args = _arguments(node, values)
            if name.startswith("quantized_decomposed."):
                return self._quantized(name.removeprefix("quantized_decomposed."), args)
            if name in _CONVERSIONS:
                return self._converted(node, args)
            if name not in ATEN:
                raise _RefusedError("this operator is not supported")
            return ATEN[name][1](self, args)
        except (_RefusedError, GraphError) as problem:
            self.problems.append(f"{name} at {self.source or node.name}: {problem}")
            return self._placeholder_for(node)

    def _placeholder_for(self, node: torch.fx.Node) -> Any:
        """A value to go on with after a problem, so that every other problem is found too."""
        value = node.meta.get("val")
        found = []
        for part in value if isinstance(value, (list, tuple)) else [value]:
            name = self.graph.fresh(node.name)
            shape = tuple(max(1, integer(d)) for d in part.shape) if isinstance(part, torch.Tensor) else ()
            self.graph.types[name] = TensorType(shape)
            found.append(name)
        return found if isinstance(value, (list, tuple)) else found[0]

    def _converted(self, node: torch.fx.Node, args: Mapping[str, Any]) -> str:
        """A conversion to float32: of float32 nothing, of an input given as uint8, moved or not, a dequantize."""
        x, given = self._operand(args["self"]), node.args[0]
        source = given.meta["val"].dtype if isinstance(given, torch.fx.Node) else None
        if args["dtype"] in (None, torch.float32) and source == torch.float32:
            return x
        if args["dtype"] != torch.float32 or source != torch.uint8 or self.graph.types[x].q != UINT8:
            found = f"found {source} to {args['dtype']}"
            raise _RefusedError(f"uint8 inputs become float32 and nothing else is converted, {found}")
        return self.emit("dequantize", (x,))

    # --- quantized_decomposed ---

    def _quantized(self, name: str, args: Mapping[str, Any]) -> str:
        match name:
            case "quantize_per_tensor.default":
                return self._quantize(args)
            case "dequantize_per_tensor.default":
                return self._dequantize(args)
            case "quantize_per_channel.default":
                return self._quantize_channel(args)
            case "dequantize_per_channel.default":
                return self._dequantize_channel(args)
            case _:
                raise _RefusedError("only static quantization (scales known at compile time) is supported")

    def _qparams(self, args: Mapping[str, Any]) -> tuple[QParams, int, int, int]:
        """(scale and zero point, lo, hi, shift) with uint8 moved to int8 by 128, exactly."""
        dtype = args["dtype"]
        if dtype not in (torch.int8, torch.uint8):
            raise _RefusedError(f"activations must be int8 or uint8, found {dtype}")
        shift = 128 if dtype == torch.uint8 else 0
        lo, hi = args["quant_min"] - shift, args["quant_max"] - shift
        if not -128 <= lo <= hi <= 127:
            raise _RefusedError(
                f"quant_min {args['quant_min']} and quant_max {args['quant_max']} are not a range of {dtype}"
            )
        return QParams(float(args["scale"]), int(args["zero_point"]) - shift), lo, hi, shift

    def _quantize(self, args: Mapping[str, Any]) -> str:
        q, lo, hi, shift = self._qparams(args)
        x = self._operand(args["input"])
        name = self.graph.fresh(self.hint)
        if shift:
            self.shifted.add(name)
        self.graph.types[name] = TensorType(self.graph.types[x].shape, INT8X4, q)
        self._append(Node("quantize", (x,), name, {"lo": lo, "hi": hi}, self.source))
        return name

    def _dequantize(self, args: Mapping[str, Any]) -> str:
        q, _, _, shift = self._qparams(args)
        x = args["input"]
        if x in self.raw:
            values = (self.raw[x].astype(np.int64) - shift).astype(np.int8)
            if values.size == 1:
                real = (values.astype(np.int32) - np.int32(q.zero)).astype(np.float32) * np.float32(q.scale)
                return self.constant(real, self.hint)
            x = self.graph.add_constant(x, values, INT8X4, q)
        elif self.graph.types[x].q != q:
            raise _RefusedError(f"it reads {self.graph.types[x]} with scale {q.scale} and zero point {q.zero}")
        return self.emit("dequantize", (x,))

    def _quantize_channel(self, args: Mapping[str, Any]) -> str:
        w, scale, zero = (self.raw.get(args[k]) for k in ("input", "scales", "zero_points"))
        if w is None or scale is None or zero is None or args["dtype"] != torch.int8:
            raise _RefusedError("per-channel quantization is supported for constant int8 weights alone")
        shape = [-1 if i == args["axis"] else 1 for i in range(w.ndim)]
        steps = np.rint(w * (np.float32(1.0) / scale.astype(np.float32)).reshape(shape)) + zero.reshape(shape)
        self.raw[self.hint] = np.clip(steps, args["quant_min"], args["quant_max"]).astype(np.int8)
        return self.hint

    def _dequantize_channel(self, args: Mapping[str, Any]) -> str:
        w, scale = self.raw.get(args["input"]), self.raw.get(args["scales"])
        if w is None or scale is None or w.dtype != np.int8:
            raise _RefusedError("per-channel dequantization is supported for constant int8 weights alone")
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise _RefusedError(f"scales must be finite and > 0, found {scale.min()} to {scale.max()}")
        zero = self.raw.get(args["zero_points"] or "")
        zero = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
        operands = (
            self._operand(args["input"]),
            self.graph.add_constant(f"{self.hint}.scale", scale.astype(np.float32)),
            self.graph.add_constant(f"{self.hint}.zero", zero),
        )
        return self.emit("dequantize_weight", operands, {"axis": args["axis"] % w.ndim})


def _arguments(node: torch.fx.Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by schema name, defaults filled in, nodes replaced by value names."""

    def value(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return values[argument.name]
        if isinstance(argument, (list, tuple)):
            return [value(a) for a in argument]
        return integer(argument) if isinstance(argument, torch.SymInt) else argument

    if not isinstance(node.target, torch._ops.OpOverload):
        raise _RefusedError("this operator is not supported")
    # As an entry of a shape the batch size is what a reshaped model finds anew; elsewhere it would be frozen.
    if any(isinstance(a, torch.fx.Node) and isinstance(a.meta.get("val"), torch.SymInt) for a in node.args):
        raise _RefusedError("it computes with the size of a dynamic batch: export with a fixed batch size")
    found: dict[str, Any] = {}
    for position, parameter in enumerate(node.target._schema.arguments):
        if position < len(node.args) and not parameter.kwarg_only:
            found[parameter.name] = value(node.args[position])
        elif parameter.name in node.kwargs:
            found[parameter.name] = value(node.kwargs[parameter.name])
        else:
            found[parameter.name] = parameter.default_value
    return found


def _numbered(outputs: Sequence[Any]) -> list[int | None]:
    """The position of each tensor output among the graph's outputs; None for what is no tensor."""
    count = iter(range(len(outputs)))
    return [next(count) if isinstance(name, str) else None for name in outputs]
