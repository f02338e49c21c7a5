"""lstm and gru: all steps of a recurrent layer in one direction, in one dispatch.

Their input is the projected input: the products of the network's input with its weights, a `linear` over all steps. A
step computes the product with the hidden state, and the cell. aten's lstm and gru, which may have several layers and
two directions, are imported as linears, these operators and cats.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Recurrent
from q8ta_wgpu.ir.kernel import FLOAT
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Builder, Case, Import, Op, Operand
from q8ta_wgpu.kernels.lib import onnx_calls
from q8ta_wgpu.kernels.recurrent import cells, layer, q8ta_recurrent
from q8ta_wgpu.kernels.recurrent.cells import CELLS


def _infer(types: tuple[TensorType, ...], attrs: Attrs, cell: str) -> tuple[Shape, str]:
    pre, weight, bias, *first = (t.shape for t in types)
    return layer.infer(cell, pre, weight, bias, first, attrs), FLOAT32


def _reference(call: Call, arrays: Sequence[Array], cell: str) -> Array:
    pre, weight, bias, hidden, *state = (a.astype(np.float64) for a in arrays)
    pre = layer.steps_first(pre, call.attrs)
    hidden, cell_state = (np.broadcast_to(a, (pre.shape[1], a.shape[1])) for a in (hidden, *(state or [hidden])))

    def step(x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
        sums = hidden @ weight.T + bias
        by_gate = [np.stack(np.split(term, CELLS[cell].gates, axis=1)) for term in (x, sums)]
        return CELLS[cell].real(by_gate[0], by_gate[1], hidden, state)

    sequence, last = cells.run(pre, hidden, cell_state, call.attrs["reverse"], step)
    found = layer.steps_first(sequence, call.attrs) if call.attrs["result"] == "sequence" else last
    return found.astype(np.float32)


# --- aten's layers ---


class _Layers:
    """A call of aten's lstm or gru."""

    def __init__(self, b: Builder, cell: str, args: Mapping[str, Any]) -> None:
        self.b, self.cell, self.args = b, cell, args
        self.directions = 2 if args["bidirectional"] else 1
        self.each = 4 if args["has_biases"] else 2
        count, expected = len(args["params"]), self.each * args["num_layers"] * self.directions
        if count != expected:
            raise b.refuse(
                "it projects its hidden states (proj_size), which is not supported: leave proj_size at 0 and put a "
                'linear after it, or leave it to PyTorch (unsupported="torch")'
            )
        if args["train"] and args["dropout"]:
            raise b.refuse("dropout is not supported: export in eval mode")
        units = b.type(args["params"][1]).shape[1]
        if units > layer.MOST_UNITS:
            raise b.refuse(f"it has {units} hidden units, {layer.MOST_UNITS} at most are supported")

    def run(self) -> list[str]:
        """The results in aten's order: the hidden states of all steps of the last layer, then the last states of all
        layers."""
        x, hidden, states = self.args["input"], [], []
        for index in range(self.args["num_layers"]):
            reverse = (False, True) if self.directions == 2 else (self.args.get("reverse", False),)
            results = [self._direction(x, index * self.directions + d, back) for d, back in enumerate(reverse)]
            sequences = [sequence for sequence, _, _ in results]
            x = sequences[0] if len(results) == 1 else self.b.emit("cat", sequences, {"dim": 2})
            hidden += [last for _, last, _ in results]
            states += [state for _, _, state in results]
        last = [hidden, states] if CELLS[self.cell].has_cell_state else [states]
        return [x, *(self.b.aten("aten.stack.default", {"tensors": tensors, "dim": 0}) for tensors in last)]

    def _direction(self, x: str, index: int, reverse: bool) -> tuple[str, str, str]:
        """(all hidden states, the last hidden state, the last state of the cell) of a layer in one direction."""
        b, batch_first = self.b, self.args["batch_first"]
        attrs = {"reverse": reverse, "batch_first": batch_first, "shifts": tuple(self.args["shifts"])}
        weight, recurrent, *biases = self.args["params"][self.each * index :][: self.each]
        none = np.zeros(b.type(weight).shape[0], np.float32)
        bias, recurrent_bias = biases or (b.constant(none, "bias") for _ in range(2))
        pre = b.emit("linear", (x, weight, bias))
        if b.array(weight) is None:  # the weight is dequantized, so the program is quantized
            pre = b.rounded(pre, q8ta_recurrent.PROJECTED)
        inputs = (pre, recurrent, recurrent_bias, *self._first(index))
        sequence, state = (b.emit(self.cell, inputs, {**attrs, "result": r}) for r in ("sequence", "state"))
        time = 1 if batch_first else 0
        last = b.aten("aten.select.int", {"self": sequence, "dim": time, "index": 0 if reverse else -1})
        return sequence, last, state

    def _first(self, index: int) -> list[str]:
        """The first states of a layer in one direction. A constant with equal rows becomes a single row."""
        states = self.args["hx"] if CELLS[self.cell].has_cell_state else [self.args["hx"]]
        found = []
        for name in states:
            array = self.b.array(name)
            if array is None:
                found.append(self.b.aten("aten.select.int", {"self": name, "dim": 0, "index": index}))
                continue
            rows = array[index].astype(np.float32)
            found.append(self.b.constant(rows[:1] if (rows == rows[:1]).all() else rows, "state"))
        return found


def _import(cell: str) -> Import:
    return lambda b, args: _Layers(b, cell, args).run()


@dataclass(frozen=True)
class _Layer:
    """One of ONNX's recurrent layers.

    Attributes:
        cell: 'lstm' or 'gru', which computes it.
        gates: the index in ONNX's order (i o f c, and z r h) of each gate of the cell; None for a gate that ONNX's
            layer does not have.
        functions: the activations that it must have.
        fixed: biases for the gates that ONNX's layer does not have: 64 opens a gate, -64 closes it, exactly in float32.
    """

    cell: str
    gates: Sequence[int | None]
    functions: Sequence[str]
    fixed: Sequence[float] = ()


_ONNX = {
    "LSTM": _Layer("lstm", (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh")),
    "GRU": _Layer("gru", (1, 0, 2), ("Sigmoid", "Tanh")),
    "RNN": _Layer("gru", (None, None, 0), ("Tanh",), (64.0, -64.0)),
}


def _onnx(name: str) -> Import:
    """The importer of ONNX's LSTM, GRU or RNN: one layer in one or two directions. With an argument `steps` both
    weights are int8, and `steps` has their scales by direction and output. Raises the builder's refusal for weights
    that are no constants or have other shapes, and as `_refusal` says."""
    kind = _ONNX[name]
    has_cell_state, own = CELLS[kind.cell].has_cell_state, sum(gate is not None for gate in kind.gates)

    def rule(b: Builder, args: Mapping[str, Any]) -> list[str]:
        x, weights, recurrent, biases, _, *first = (*args["inputs"], None, None, None, None)[: 6 + has_cell_state]
        if refusal := _refusal(args, name):
            raise b.refuse(refusal)
        arrays = [onnx_calls.constant(b, each, "weights") for each in (weights, recurrent, biases)]
        assert arrays[0] is not None
        directions, count, inputs = arrays[0].shape[0], int(args["hidden_size"]), arrays[0].shape[2]
        shapes = (directions, own * count, inputs), (directions, own * count, count), (directions, 2 * own * count)
        for array, shape in zip(arrays, shapes, strict=True):
            if array is not None and array.shape != shape:
                raise b.refuse(f"its weights must be {', '.join(map(str, shapes))}, found {array.shape}")
        params = []
        for d in range(directions):
            w, r, both = (None if a is None else a[d] for a in arrays)
            halves = np.zeros((2, own * count)) if both is None else both.reshape(2, -1)
            for at, array in enumerate((w, r, *halves)):
                assert array is not None
                ordered = _in_order(kind, array, count, at == 2)
                steps = args["steps"][at][d] if at < 2 and "steps" in args else None
                params.append(
                    b.constant(ordered.astype(np.float32), "weight")
                    if steps is None
                    else _in_steps(b, ordered, _in_order(kind, steps, count, False))
                )
        front = bool(args.get("layout"))
        none = np.zeros((directions, b.type(x).shape[0 if front else 1], count), np.float32)
        states = [b.constant(none, "state") if s is None else _batch_swapped(b, s) if front else s for s in first]
        call = {"input": x, "hx": states if has_cell_state else states[0], "params": params, "has_biases": True}
        more = {"num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": directions == 2, "batch_first": front}
        reverse = args["direction"] == "reverse"
        sequence, *last = _Layers(b, kind.cell, {**call, **more, "reverse": reverse, "shifts": (0, 0)}).run()
        split = b.emit("view", (sequence,), {"shape": (0, 0, directions, count)})
        if front:
            return [split, *(_batch_swapped(b, each) for each in last)]
        return [b.emit("permute", (split,), {"dims": (0, 2, 1, 3)}), *last]

    return rule


def _in_steps(b: Builder, array: Array, steps: Array) -> str:
    """A dequantized int8 weight with zero point 0 and a scale for each output."""
    arrays: tuple[Array, ...] = (array.astype(np.int8), steps.astype(np.float32), np.zeros(len(steps), np.int32))
    names = [b.constant(each, hint) for each, hint in zip(arrays, ("weight", "scale", "zero"), strict=True)]
    return str(b.emit("dequantize_weight", names, {"axis": 0}))


def _batch_swapped(b: Builder, states: str) -> str:
    """States (batch, layer, units) as (layer, batch, units), or the other way round."""
    array = b.array(states)
    if array is not None:
        return str(b.constant(np.ascontiguousarray(array.astype(np.float32).transpose(1, 0, 2)), "state"))
    return str(b.emit("permute", (states,), {"dims": (1, 0, 2)}))


def _in_order(kind: _Layer, array: Array, count: int, bias: bool) -> Array:
    """Weights or biases of ONNX's gates, in the cell's order. For gates that ONNX does not have they are zeros; as
    `bias`, they are `kind.fixed`."""
    by_gate = array.reshape(-1, count, *array.shape[1:])
    found = [np.zeros_like(by_gate[0]) if gate is None else by_gate[gate] for gate in kind.gates]
    for at, number in enumerate(kind.fixed if bias else ()):
        found[at] += np.float32(number)
    return np.concatenate(found)


def _refusal(args: Mapping[str, Any], name: str) -> str:
    """Why an ONNX layer is not supported; empty if it is."""
    usual = list(_ONNX[name].functions)
    found = args.get("activations") or usual
    functions = [f if isinstance(f, str) else f.decode() for f in found]
    if functions[: len(usual)] != usual or functions[len(usual) :] not in ([], usual):
        return f"its activations must be {', '.join(usual)}, found {', '.join(functions)}"
    if args.get("clip") or args.get("input_forget"):
        return "clip and input_forget are not supported"
    inputs = (*args["inputs"], *(None,) * 8)
    if inputs[4] is not None or (name == "LSTM" and inputs[7] is not None):
        return "lengths of sequences and peepholes are not supported: remove padding before the network or after it"
    if name == "GRU" and not args["linear_before_reset"]:
        return "linear_before_reset must be 1, as in PyTorch's GRU"
    return ""


def _refuse_packed(b: Builder, args: Mapping[str, Any]) -> str:
    raise b.refuse(
        "packed sequences are not supported: give padded ones and read each result at its sequence's end, or leave it "
        'to PyTorch (unsupported="torch")'
    )


# --- the operators ---


def _case(cell: str, steps: int, batch: int, units: int, first: int, **attrs: Any) -> Case:
    gates, states = CELLS[cell].gates * units, 2 if CELLS[cell].has_cell_state else 1
    lead = (batch, steps) if attrs.get("batch_first") else (steps, batch)
    shapes = ((*lead, gates), (gates, units), (gates,), *((first, units),) * states)
    return Case(shapes, {"reverse": False, "batch_first": False, "result": "sequence", "shifts": (0, 0), **attrs})


def _op(cell: str) -> Op:
    state = (Operand("cell", real=True),) if CELLS[cell].has_cell_state else ()
    return Op(
        name=cell,
        operands=(
            Operand("pre"),
            Operand("weight", constant=True),
            Operand("bias", constant=True),
            Operand("hidden", real=True),
            *state,
        ),
        infer=functools.partial(_infer, cell=cell),
        reference=functools.partial(_reference, cell=cell),
        schema=layer.SCHEMA,
        macs=layer.macs,
        work=layer.work,
        kernels=layer.kernels(
            cell,
            cell,
            ("recurrent_float32", cell),
            lanes=1,
            inputs=(FLOAT,),
            output=FLOAT,
            params=functools.partial(layer.params, lanes=1),
            prepack={1: functools.partial(layer.pack_weight, lanes=1)},
        ),
        aten={f"aten.{cell}.input": _import(cell), f"aten.{cell}.data": _refuse_packed},
        onnx={name: _onnx(name) for name, kind in _ONNX.items() if kind.cell == cell},
        int8=Recurrent(functools.partial(q8ta_recurrent.lower, cell=cell), q8ta_recurrent.PROJECTED),
        cases=(
            _case(cell, 5, 2, 7, 2),
            _case(cell, 3, 3, 67, 1, batch_first=True, reverse=True),
            _case(cell, 4, 2, 7, 2, result="state", shifts=(4, 2)),
        ),
        tolerance=1e-4,
    )


OPS = tuple(_op(cell) for cell in CELLS)
