"""What the rules match: for each rule a function that finds readings of a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT32, Graph, Node, QParams
from q8ta_wgpu.ir.int8 import (
    Arithmetic,
    Elementwise,
    Moves,
    Normalization,
    Product,
    Recurrent,
    Rowwise,
    WeightedSum,
)
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.finite import asked_of_inputs
from q8ta_wgpu.quantization.steps import Costs, moved_from, reads_int16
from q8ta_wgpu.quantization.stored import Reading, Role, Stored, StoredValues
from q8ta_wgpu.quantization.tuned import FEW, GOOD

_DIVIDES = {"div": 1, "reciprocal": 0, "rsqrt": 0}
"""Operators that divide, and the position of the operand by which they divide."""

_KEEP_ERRORS = ("sqrt", "affine", "divide")
"""Functions whose results have relative errors as large as their operand's, besides sums, products and moves."""

_CHOOSES = ("argmax", "argmin", "rank")
"""Operators that give places by the order of what they read; topk and sort begin with a rank."""

_PASS_ON = ("quantize", "dequantize", "view")
"""Operators of bools that are stored in int8, besides moves."""

_EXPONENTIALS = ("exp", "expm1")


@dataclass(frozen=True)
class Network:
    """What rules look at.

    Attributes:
        values: what is stored, and who reads it.
        costs: of wider values.
        known: the readings that earlier rules have decided.
    """

    values: StoredValues
    costs: Costs
    known: Collection[Reading] = ()


def asked(network: Network) -> Iterator[Reading]:
    """Inputs, and functions of inputs alone, of which the module asks which elements are infinite or NaN."""
    values = network.values
    asks = asked_of_inputs(values.graph)
    for stored in values.stored:
        if any(node.output in asks for node in values.readers_of(stored, "steps")):
            yield stored, "steps"


def choices(network: Network) -> Iterator[Reading]:
    """Values whose order decides: what argmax, topk and sort read, perhaps behind functions of it, and what is compared
    or rounded where the result is an output."""
    values = network.values
    chooses = {node.output for node in values.graph.nodes if node.op in _CHOOSES} | _whole_outputs(values.graph)
    for node in reversed(values.graph.nodes):
        if not isinstance(OPS[node.op].int8, WeightedSum | Product | Recurrent):
            chooses.update(
                [node.output] if any(r.output in chooses for r in values.readers.get(node.output, ())) else []
            )
    for stored in values.stored:
        if any(node.output in chooses for node in values.readers_of(stored, "steps")):
            yield stored, "steps"


def _whole_outputs(graph: Graph) -> set[str]:
    """What nodes give that makes bools or whole numbers which are outputs, perhaps moved or combined."""
    ends, found = {*graph.outputs}, set[str]()
    for node in reversed(graph.nodes):
        given, int8 = graph.types[node.output], OPS[node.op].int8
        whole = given.q == BOOL or given.dtype == INT32 or (isinstance(int8, Elementwise) and int8.whole)
        if node.output in ends and (whole or isinstance(int8, Moves) or node.op in _PASS_ON):
            ends.update(node.inputs)
            found.update([node.output] if whole else [])
    return found


def scores(network: Network) -> Iterator[Reading]:
    """Scores that a softmax reads from memory. Scores that are larger than all of the calibration would be clipped, and
    would then have equal shares."""
    for stored in _in_8_bits(network):
        read = [OPS[node.op].int8 for node in network.values.readers_of(stored, "others")]
        if any(isinstance(int8, Rowwise) and int8.masked for int8 in read):
            yield stored, "others"


def exponents(network: Network) -> Iterator[Reading]:
    """What an exponential reads whose result passes 1 and others than layers read, with all slices beside it. An
    argument that is larger than all of the calibration would be clipped, and the result too small by a factor."""
    values = network.values
    large = (s for s in values.stored if s.edges("others") and max(s.met.high, -s.met.low) > 1)
    results = [name for stored in large for name in stored.values]
    read = dict.fromkeys(name for result in results for name in _arguments_of_exp(values, result))
    yield from _with_slices(network, (stored for name in read for stored in values.of_value[name]))


def _arguments_of_exp(values: StoredValues, result: str) -> Iterator[str]:
    """The stored value of which a result is an exponential, perhaps with functions before and behind it."""
    name, found = result, False
    while (node := values.producers.get(name)) is not None and (name == result or name not in values.of_value):
        read = [n for n in node.inputs if n not in values.graph.constants]
        if not isinstance(OPS[node.op].int8, Elementwise | Arithmetic) or len(read) != 1:
            return
        found = found or node.op in _EXPONENTIALS
        (name,) = read
    if found and name in values.of_value:
        yield name


def divisors(network: Network) -> Iterator[Reading]:
    """Divisors that come near zero, and the terms of a sum that is one: what counts is their relative error."""
    values = network.values
    by = {node.inputs[_DIVIDES[node.op]] for node in values.graph.nodes if node.op in _DIVIDES}
    waiting = [s for s in values.stored if not by.isdisjoint(s.values) and _is_near_zero(s)]
    found = dict.fromkeys(waiting)
    for stored in waiting:
        new = [part for part in _made_of(values, stored) if part not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    roles: tuple[Role, ...] = ("products", "others")
    yield from ((stored, role) for stored in found for role in roles)


def states(network: Network) -> Iterator[Reading]:
    """What is computed beside a state by no layer, and the state itself, where it is computed from its older value.
    Errors of it last from run to run and add up, and it reaches further than in calibration. What recurrent layers give
    is no such state."""
    values = network.values
    beside = {name for pair in values.states.items() for name in _beside(values, *pair)}
    yield from _with_slices(network, (s for s in values.stored if not beside.isdisjoint(s.values)))


def _beside(values: StoredValues, read: str, written: str) -> set[str]:
    """The values from which a state is computed by no layer, and those that are computed so from it. Empty where the
    state is not computed from its older value, as a cache of rows is not."""
    behind = _reached([written], lambda name: _operands_of(values, name))
    if read not in behind or not _goes_on(values, read, behind, written):
        return set()
    return behind | _reached([read, written], lambda name: _results_of(values, name))


def _goes_on(values: StoredValues, read: str, behind: Collection[str], written: str) -> bool:
    """Whether a state is computed from its older value, not only moved or chosen."""
    computed = set[str]()
    for name in (n.output for n in values.graph.nodes if n.output in behind):
        node = values.producers[name]
        moves = isinstance(OPS[node.op].int8, Moves) or node.op in ("where", "update")
        from_state = any(n == read or n in computed for n in node.inputs)
        passes_on = any(n in computed for n in node.inputs)
        computed.update([name] if passes_on or (from_state and not moves) else [])
        if moves and read in node.inputs and name not in computed:
            read = name  # the state itself, moved
    return written in computed


def _operands_of(values: StoredValues, name: str) -> Iterable[str]:
    node = values.producers.get(name)
    return node.inputs if node is not None and _is_no_layer(values, node) else ()


def _results_of(values: StoredValues, name: str) -> Iterable[str]:
    return (node.output for node in values.readers.get(name, ()) if _is_no_layer(values, node))


def _reached(begin: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    waiting = list(begin)
    found = set(waiting)
    for name in waiting:
        new = [each for each in following(name) if each not in found]
        found.update(new)
        waiting += new
    return found


def _is_no_layer(values: StoredValues, node: Node) -> bool:
    """Whether a node computes its result element by element, multiplies two activations, normalizes or moves."""
    int8 = OPS[node.op].int8
    known = isinstance(int8, Arithmetic | Elementwise | Normalization | Moves)
    return known or (isinstance(int8, Product) and values.graph.constants.keys().isdisjoint(node.inputs))


def few_values(network: Network) -> Iterator[Reading]:
    """Values of which calibration met few, as long as that costs next to nothing. Inputs of bytes and bools are no such
    values: 8 bits hold each of them."""
    roles: tuple[Role, ...] = ("products", "others")
    costs = network.costs
    computed = {name for name, node in network.values.producers.items() if node.op != "dequantize"}
    found = [
        (costs.of((stored, role), "int16"), (stored, role))
        for stored in _in_8_bits(network)
        if 0 < _met(stored) < FEW and not stored.edges("sums") and any(name in computed for name in stored.values)
        for role in roles
        if stored.edges(role) and costs.is_exact((stored, role)) and (stored, role) not in network.known
    ]
    found.sort(key=lambda pair: pair[0])
    left = costs.unnoticed
    for cost, reading in found:
        left -= cost
        if left >= 0:
            yield reading


def _in_8_bits(network: Network) -> Iterator[Stored]:
    """The values in 8 bits, but for those that recurrent layers give: these have no others."""
    values = network.values
    narrow = (stored for stored in values.stored if stored.width == "int8" and not stored.is_exact)
    return (stored for stored in narrow if not is_recurrent(values, stored))


def is_recurrent(values: StoredValues, stored: Stored) -> bool:
    """Whether values are results of a recurrent layer, which gives no others than int8."""
    made = [moved_from(values, name) for name in stored.values]
    return any(node is not None and isinstance(OPS[node.op].int8, Recurrent) for node in made)


def _met(stored: Stored) -> float:
    """How many values calibration met; 0 if their range does not follow from data."""
    return 0.0 if isinstance(stored.storage, QParams) else stored.met.count


def _with_slices(network: Network, read: Iterable[Stored]) -> Iterator[Reading]:
    """These values for all readers but layers. Of slices of a weighted sum all are taken, or none: if one is wider than
    the others, the sum is computed in float32."""
    costs, values = network.costs, network.values
    found = dict.fromkeys(stored for stored in read if not is_recurrent(values, stored))
    sums = {made for stored in found for made in costs.sliced(stored)}
    found |= {stored: None for stored in values.stored if not sums.isdisjoint(costs.sliced(stored))}
    every: list[Reading] = [(stored, "others") for stored in found if stored.width == "int8"]
    every += [
        (stored, "products")
        for stored in found
        if stored.width == "int8" and all(map(reads_int16, values.readers_of(stored, "products")))
    ]
    yield from every


def _noise_of_a_step(stored: Stored) -> float:
    """The mean square of the errors by which int16 rounds values."""
    return stored.q("int16").scale ** 2 / 12


def _is_near_zero(stored: Stored) -> bool:
    """Whether values have one sign, and the one nearest to zero has no good ratio in int16, or is not known, since
    others are zeros."""
    least = max(stored.met.low, -stored.met.high)
    one_sign = least >= 0 if stored.zeros else least > 0
    return one_sign and _noise_of_a_step(stored) > GOOD * least**2


def _made_of(values: StoredValues, stored: Stored) -> list[Stored]:
    """The stored values, none of them negative, whose sum, product, copy or root a value is. Its relative error is then
    as large as theirs."""
    found: dict[Stored, None] = {}
    waiting = list(stored.values)
    for name in waiting:
        made = values.producers.get(name)
        int8 = None if made is None else OPS[made.op].int8
        keeps = isinstance(int8, Arithmetic | Moves) or name in values.transforms
        if made is None or not (keeps or made.op in _KEEP_ERRORS):
            continue
        for read in made.inputs:
            parts = values.of_value.get(read, [])
            found.update(dict.fromkeys(parts))
            if not parts and read not in waiting and values.graph.types[read].dtype == FLOAT32:
                waiting.append(read)
    return [part for part in found if part.met.low >= 0 and part is not stored]
