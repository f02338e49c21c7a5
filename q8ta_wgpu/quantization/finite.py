"""What asks which elements are infinite or NaN. No number of bits holds these, and no small change of a number changes
the answer."""

from __future__ import annotations

from q8ta_wgpu.ir.graph import FLOAT32, Graph, Node
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves
from q8ta_wgpu.ir.op import FLOAT_MAX
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.stored import readers_of


def asks_whether_finite(node: Node) -> bool:
    """Whether a node asks which elements are infinite or NaN: also by a comparison with itself, or with what no finite
    number passes."""
    if node.op in ("isnan", "isinf") or (node.op in ("ne", "eq") and node.inputs[0] == node.inputs[1]):
        return True
    return node.op in ("gt_scalar", "lt_scalar") and abs(node.attrs["number"]) >= FLOAT_MAX


def asked_of_inputs(graph: Graph) -> set[str]:
    """What asks so of inputs, or of functions of inputs alone, and these functions. What layers compute is not meant:
    of infinities they make nothing that is of use."""
    known = {name for name in graph.inputs if graph.types[name].dtype == FLOAT32}
    readers, asks = readers_of(graph), set[str]()
    for node in graph.nodes:
        read = {name for name in node.inputs if name not in graph.constants}
        if read <= known and isinstance(OPS[node.op].int8, Elementwise | Arithmetic | Monotonic | Moves):
            known.add(node.output)
            asks.update([node.output] if asks_whether_finite(node) else [])
    for node in reversed(graph.nodes):
        if node.output in known and any(r.output in asks for r in readers.get(node.output, ())):
            asks.add(node.output)
    return asks
