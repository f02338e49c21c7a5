"""Quantizes a float graph as another PT2E quantizer annotates it, or ours for training: by torchao's prepare and
convert, without their errors and slow steps.

torchao folds every batch norm behind a convolution, in place. That is wrong if the convolution's result has other
readers, if one convolution is applied twice, and for transposed convolutions with groups. `convert_pt2e` also searches
a model with batch norms for 48 patterns of quantization-aware training, each of which it traces again, which takes half
a minute. So batch norms are hidden from both, and shown only to quantizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen, PythonCode

from q8ta_wgpu.frontend.calibrate import faults
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.export.modes import OwnNumbers
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.export.states import states_of
from q8ta_wgpu.frontend.export.tracing import torch_lock
from q8ta_wgpu.frontend.nodes import constant, normalizes
from q8ta_wgpu.frontend.notes import SIZES, noted
from q8ta_wgpu.frontend.pt2e.torchao import Quantizer, convert_pt2e, prepare_pt2e

Tensors = tuple[Tensor, ...]


class Foreign:
    """A float graph on its way to int8 by a PT2E quantizer.

    Args:
        graph: the float graph, which is changed.
        quantizer: that annotates it.
        buffers: what the states of the module begin with, by name.
        edit: applied to the graph before it is annotated, with its batch norms.

    Attributes:
        module: the graph with observers, and quantized in the end.
    """

    said = ()

    def __init__(
        self,
        graph: GraphModule,
        quantizer: Quantizer,
        buffers: Mapping[str, Tensor],
        edit: Callable[[GraphModule], GraphModule],
    ) -> None:
        self._buffers = buffers
        _hide_norms(graph)
        with torch_lock():  # quantizers may trace patterns
            self.module = _without_code(graph, lambda whole: prepare_pt2e(whole, _Shown(quantizer, edit)))
        _share_states(self.module)
        self.module.recompile()

    def calibrate(self, items: Iterator[Tensors], update: Callable[[int], None]) -> tuple[int, bool]:
        """Runs the module with observers on every item.

        Returns:
            The number of items, and whether all were zeros.

        Raises:
            InputError: one leads to NaN or an infinity.
        """
        count, zeros, run = 0, True, _observing(self.module)
        watched = {node: node.all_input_nodes[0] for node in _observers(self.module)}
        for item in items:
            update(count)
            zeros = zeros and not any(x.any() for x in item)
            with faults.finite(self.module, watched, item, count, self._buffers):
                run(*item)
            count += 1
        return count, zeros

    def quantize(self) -> str:
        """Puts quantizes and dequantizes in place of observers. Returns a warning about values that int8 makes
        constant; empty if there is none. Raises InputError for values that have no range."""
        met = list(_met(self.module))
        faults.check_ranges(self.module, met, self._buffers)
        lost = faults.lost_values(met)
        _hide_norms(self.module)
        self.module = _without_code(self.module, lambda whole: convert_pt2e(whole, fold_quantize=False))
        _show_norms(self.module)
        fold(self.module, quantizing=True)
        return lost


def _observer_of(model: GraphModule, node: Any) -> Any:
    """The observer that a node of a prepared module calls. None for nodes that call something else."""
    found = model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None
    return found if hasattr(found, "calculate_qparams") else None


def _observers(model: GraphModule) -> Iterator[Node]:
    return (node for node in model.graph.nodes if _observer_of(model, node) is not None)


def _share_states(observed: GraphModule) -> None:
    """Lets one observer watch the old and the new value of a state if both have the same width, so that both are stored
    at one scale."""
    for state, result in states_of(observed):
        written = _observer_of(observed, result)
        for user in list(state.users):
            read = _observer_of(observed, user)
            if read is None or written is None or read is written or read.quant_max != written.quant_max:
                continue
            for call in observed.graph.find_nodes(op="call_module"):
                if _observer_of(observed, call) is read:
                    setattr(observed, str(call.target), written)


def _observing(model: GraphModule) -> Callable[..., Any]:
    """Runs a module with observers; at the sizes of its inputs if it is annotated with them. Observers of tables that
    are read in slices observe the whole tables, since every item may be smaller."""
    for table in (node for node in model.graph.find_nodes(op="get_attr") if "shape" in noted(node, SIZES, {})):
        for user in table.users:
            if _observer_of(model, user) is not None:
                model.get_submodule(str(user.target))(constant(model, table))
    return Sized(model).run if any(noted(node, SIZES) for node in model.graph.nodes) else model


def _met(model: GraphModule) -> Iterator[faults.Met]:
    """What the observers of activations met."""
    for node in _observers(model):
        observer = _observer_of(model, node)
        low, high = (getattr(observer, name, None) for name in ("min_val", "max_val"))
        if isinstance(low, Tensor) and isinstance(high, Tensor) and low.numel() == 1:
            steps = (getattr(observer, "quant_max", None) or 127) - (getattr(observer, "quant_min", None) or 0)
            least = float(getattr(observer, "eps", 0.0))
            yield faults.Met(node.all_input_nodes[0], float(low), float(high), steps, least)


def _hide_norms(model: GraphModule) -> None:
    """Replaces batch norms by their overload packets, which compute the same and export to the same."""
    for node in model.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and normalizes(node):
            node.target = node.target.overloadpacket


def _show_norms(model: GraphModule) -> None:
    """Reverses `_hide_norms`."""
    for node in model.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverloadPacket):
            node.target = node.target.default


def _without_code(model: GraphModule, step: Callable[[GraphModule], GraphModule]) -> GraphModule:
    """The result of one of torchao's functions, which make modules of a graph and recompile them after each of their
    steps. That takes most of their time, and they run none of these modules: no Python code is written for them."""
    written = model.graph._codegen
    model.graph.set_codegen(_NoCode())
    with OwnNumbers():
        found = step(model)
    found.graph.set_codegen(written)
    return found


class _NoCode(CodeGen):
    """Writes a function of no nodes, whatever the graph. A version of torch that lacks the method writes them all."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> PythonCode:
        return super()._gen_python_code(Graph().nodes, *args, **kwargs)


class _Shown(Quantizer):  # type: ignore[misc]
    """A quantizer to which hidden batch norms are shown again."""

    def __init__(self, quantizer: Quantizer, edit: Callable[[GraphModule], GraphModule]) -> None:
        super().__init__()
        self._quantizer, self._edit = quantizer, edit

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Shows the batch norms, and edits the graph."""
        _show_norms(model)
        return self._edit(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        """As the quantizer does."""
        annotated: GraphModule = self._quantizer.annotate(model)
        return annotated

    def validate(self, model: GraphModule) -> None:
        """As the quantizer does."""
        self._quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, observers: Any) -> None:
        """As the quantizer does."""
        self._quantizer.prepare_obs_or_fq_callback(model, observers)
