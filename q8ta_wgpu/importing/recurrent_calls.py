"""Importer functions of recurrent layers: LSTM, GRU, and ONNX's RNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.kernels.recurrent import layer, q8ta_recurrent
from q8ta_wgpu.kernels.recurrent.cells import CELLS


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
                    else b.weight(ordered.astype(np.int8), _in_order(kind, steps, count, False), np.zeros(len(ordered)))
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


ATEN: Rules = {cell: {f"aten.{cell}.input": _import(cell), f"aten.{cell}.data": _refuse_packed} for cell in CELLS}
ONNX: Rules = {cell: {name: _onnx(name) for name, kind in _ONNX.items() if kind.cell == cell} for cell in CELLS}
