"""Fuses moves of whole channels into the convolutions that read them, which then read parts of stored tensors in place.

cat, slice, chunk, channel_shuffle, and permutes and views that only change the order of channels, say for each channel
of their result which channel of which tensor it is; so does nearest upsampling by 2, 4 .., for larger images. A
convolution of one group may read its channels in any order, if its weights are in that order. It reads the words that
hold them. Other channels in these words, and lanes that are no channels, have weights of 0. So a value that only such
convolutions read is never stored.

Where moves end in convolutions and in something else, one q8ta_take_channels stores what the other reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MACS_A_BYTE
from q8ta_wgpu.kernels.prologue.prologue import MOST_SHIFT, VECTOR, Part, Prologue
from q8ta_wgpu.passes.layout_sync.cost import DISPATCH
from q8ta_wgpu.passes.rewriter import Rewriter

CONVOLUTION, OF_PARTS, TAKE = "q8ta_conv2d", "q8ta_conv2d_parts", "q8ta_take_channels"

OWN = 5
"""Operands of a convolution before those of its epilogue."""

MOST_TENSORS = 3
"""The most tensors that a convolution reads. Where there are more, q8ta_take_channels joins those of an earlier value.
On an H100 ShuffleNet at batch 8 takes 0.304 ms with 2, 0.295 with 3 and 0.290 with 4, a network like YOLO 0.425 with 3
and 0.436 without a limit. lavapipe runs all branches of a switch: ShuffleNet takes 25.0 ms with 2 or 3, 31.2 without a
limit. There a window larger than 1x1 reads one tensor, since it would run the switch for every tap: U-Net takes 1.05
times as long with two."""

Channels = NDArray[np.int64]
"""Of a value (N, dimensions of channels .., H, W): for each of its channels the number of a source, times SOURCE, and
the channel there. The shape is that of the dimensions of channels."""

SOURCE = 1 << 32


def fold_moves(graph: Graph, target: Target) -> None:
    """Fuses moves of channels into convolutions where that pays on the target."""
    if not target.prologues:
        return
    rewriter = Rewriter(graph)
    moves = _Moves(rewriter, target)
    while name := moves.unfit():
        moves.stored.add(name)
    for node, changed in [(node, moves.rewritten(node)) for node in rewriter.nodes()]:
        if changed is not None:
            rewriter.replace(node, changed)
    rewriter.commit()


class _Moves:
    """The moves of channels of a graph that end in convolutions.

    Attributes:
        moves: the nodes, by name of their result, in order.
        stored: results that are stored, because something else reads them, or since it is cheaper.
        sources: by number (name, times that it is upsampled by 2).
        found: the channels of each result of `moves`.
    """

    def __init__(self, rewriter: Rewriter, target: Target) -> None:
        self.rewriter, self.graph, self.target = rewriter, rewriter.graph, target
        self.sources: list[tuple[str, int]] = []
        self.moves = {node.output: node for node in rewriter.nodes() if self._moves_channels(node)}
        ending = {name for group in self._groups() if self._ends(group) for name in group}
        self.moves = {name: node for name, node in self.moves.items() if name in ending}
        outputs = set(self.graph.outputs)
        self.stored = {name for name in self.moves if name in outputs or not self._read_in_place(name)}
        self.found: dict[str, Channels] = {}

    # --- which nodes ---

    def _moves_channels(self, node: Node) -> bool:
        types = [self.graph.types[name] for name in (*node.inputs, node.output)]
        constant = any(name in self.graph.constants for name in node.inputs)
        if constant or len({t.q for t in types}) > 1 or any(t.dtype != INT8X4 or len(t.shape) < 4 for t in types):
            return False
        x, y = types[0].shape, types[-1].shape
        inner = range(1, len(x) - 2)
        match node.op:
            case "cat" | "slice":
                return node.attrs["dim"] in inner
            case "view":
                return (x[0], *x[-2:]) == (y[0], *y[-2:])
            case "permute":
                dims = tuple(node.attrs["dims"])
                return (dims[0], *dims[-2:]) == (0, len(x) - 2, len(x) - 1)
            case "channel_shuffle":
                return len(x) == 4
            case "upsample_nearest":
                return len(x) == 4 and _doublings(node, x, y) > 0
            case _:
                return False

    def _groups(self) -> list[list[str]]:
        """The moves that are joined by values from one to the next."""
        group_of: dict[str, list[str]] = {}
        for name, node in self.moves.items():
            joined = list({id(g): g for g in (group_of[x] for x in node.inputs if x in group_of)}.values())
            group = [name, *itertools.chain(*joined)]
            group_of |= dict.fromkeys(group, group)
        return list({id(group): group for group in group_of.values()}.values())

    def _ends(self, group: Sequence[str]) -> bool:
        """Whether some value of a group is read by a convolution that may read parts."""
        return any(_may_read_parts(reader, name) for name in group for reader in self.rewriter.readers(name))

    def _read_in_place(self, name: str) -> bool:
        """Whether all readers of a value are moves, or convolutions that may read parts."""
        readers = self.rewriter.readers(name)
        return all(reader.output in self.moves or _may_read_parts(reader, name) for reader in readers)

    # --- channels ---

    def _source(self, name: str, shift: int = 0) -> int:
        if (name, shift) not in self.sources:
            self.sources.append((name, shift))
        return self.sources.index((name, shift)) * SOURCE

    def _channels(self, name: str) -> Channels:
        """The channels of a value: of the tensors that it is moved from, or its own where it is stored as it is."""
        if name in self.found and name not in self.stored:
            return self.found[name]
        inner = self.graph.types[name].shape[1:-2]
        return self._source(name) + np.arange(np.prod(inner), dtype=np.int64).reshape(inner)

    def _moved(self, node: Node) -> Channels:
        """The channels of a move's result."""
        x, attrs = self._channels(node.inputs[0]), node.attrs
        match node.op:
            case "cat":
                return np.concatenate([self._channels(name) for name in node.inputs], attrs["dim"] - 1)
            case "slice":
                steps = slice(attrs["start"], attrs["end"], attrs["step"])
                return x[(*[slice(None)] * (attrs["dim"] - 1), steps)]
            case "permute":
                return x.transpose([dim - 1 for dim in attrs["dims"][1:-2]])
            case "channel_shuffle":
                return x.reshape(attrs["groups"], -1).T.reshape(-1)
            case "upsample_nearest":
                more = _doublings(node, *(self.graph.types[name].shape for name in (node.inputs[0], node.output)))
                sources, places = np.unique(x // SOURCE, return_inverse=True)
                named = [self.sources[source] for source in sources]
                shifted = np.array([self._source(name, shift + more) for name, shift in named])
                return np.asarray(shifted[places].reshape(x.shape) + x % SOURCE)
            case _:
                return x.reshape(self.graph.types[node.output].shape[1:-2])

    def _used(self, channels: Channels) -> Iterator[tuple[str, int, Channels, Channels]]:
        """For each source of which channels are read: its name and shift, the places of these channels in the value,
        and the channels in the source."""
        numbers, within = np.divmod(channels.reshape(-1), SOURCE)
        for number in dict.fromkeys(numbers.tolist()):
            places = np.flatnonzero(numbers == number)
            yield *self.sources[number], places, within[places]

    # --- what is stored ---

    def unfit(self) -> str:
        """Finds the channels of all moves; returns a value that has to be stored in addition, since something that
        reads it does not fit or does not pay otherwise. Empty where there is none."""
        self.found = {}
        for name, node in self.moves.items():
            self.found[name] = self._moved(node)
        for node in self.rewriter.nodes():
            if self._reads_parts(node) and (unfit := self._unfit(node)):
                return unfit
            if self._takes(node) and not self._is_taken(node):
                return next(filter(self._is_moved, node.inputs))
        return ""

    def _is_moved(self, name: str) -> bool:
        """Whether a value is the result of a move, and not stored as it is."""
        return name in self.moves and name not in self.stored

    def _reads_parts(self, node: Node) -> bool:
        return node.op == CONVOLUTION and self._is_moved(node.inputs[0]) and _may_read_parts(node, node.inputs[0])

    def _takes(self, node: Node) -> bool:
        """Whether a node is a move whose result is stored, of values that are not."""
        return node.output in self.stored and any(map(self._is_moved, node.inputs))

    def _is_taken(self, node: Node) -> bool:
        """Whether q8ta_take_channels can store the result of a move."""
        used = list(self._used(self.found[node.output]))
        images = all(shift == 0 and len(self.graph.types[name].shape) == 4 for name, shift, _, _ in used)
        return images and len(self.graph.types[node.output].shape) == 4 and len(used) + 2 <= self.target.storage_buffers

    def _unfit(self, node: Node) -> str:
        """A value that has to be stored before a convolution can be run; empty if it reads parts as they are."""
        x, call = node.inputs[0], self.graph.call(node)
        try:
            merged, weight = self._merged(node)
        except GraphError:  # too many parts, a tensor that is no image, or a channel that is read twice
            return x
        window = call.inputs[1].shape[2:] != (1, 1) and not self.target.shares_memory
        most = 1 if window else min(MOST_TENSORS, self.target.storage_buffers - len(call.inputs))
        if len(merged.attrs["prologue"].names) > most:
            return self._largest(x)
        types = [self.graph.types[name] for name in merged.inputs]
        types[1] = replace(types[1], shape=weight.shape)
        fused = replace(call, op=OF_PARTS, attrs=merged.attrs, inputs=tuple(types))
        n, _, h, w = epilogue.extents(call)
        runs = n * h * w > FEW_ROWS and any(kernel.runs(fused, self.target) for kernel in OPS[OF_PARTS].kernels)
        more = (OPS[OF_PARTS].macs(fused) - OPS[CONVOLUTION].macs(call)) / MACS_A_BYTE["tiled"]
        saved = DISPATCH + 2 * self.graph.types[x].stored_bytes(Layout.PACKED_INT8_4C)
        return "" if runs and more <= saved else x

    def _largest(self, name: str) -> str:
        """Of a value that is made of too many tensors: what brings most of them to the last cat, or the value itself
        where the cat joins stored tensors."""
        last = name
        while self._is_moved(last) and self.moves[last].op != "cat":
            last = self.moves[last].inputs[0]
        joined = [each for each in self.moves[last].inputs if self._is_moved(each)] if self._is_moved(last) else []
        return max(joined, key=lambda each: len(list(self._used(self.found[each]))), default=name)

    # --- what is made of them ---

    def rewritten(self, node: Node) -> Node | None:
        """What replaces a node: a convolution that reads parts, or what stores moved channels. None for other nodes."""
        if self._reads_parts(node):
            merged, weight = self._merged(node)
            stored = self.graph.add_constant(f"{node.inputs[1]}.parts", weight)
            return replace(merged, inputs=(merged.inputs[0], stored, *merged.inputs[2:]))
        if self._takes(node):
            return self._taken(node)
        return None

    def _merged(self, node: Node) -> tuple[Node, Array]:
        """The convolution that reads parts, and its weight. Raises GraphError where there is none."""
        prologue, names, lanes = self._parts(self.found[node.inputs[0]])
        own = self.graph.constants[node.inputs[1]]
        weight = np.zeros((own.shape[0], VECTOR * prologue.vectors, *own.shape[2:]), own.dtype)
        weight[:, lanes] = own
        inputs = (names[0], *node.inputs[1:OWN], *names[1:], *node.inputs[OWN:])
        return replace(node, op=OF_PARTS, inputs=inputs, attrs={**node.attrs, "prologue": prologue}), weight

    def _parts(self, channels: Channels) -> tuple[Prologue, list[str], Channels]:
        """The prologue that reads channels, its tensors, and in which of its lanes each channel is. Raises GraphError
        where there is none."""
        used = list(self._used(channels))
        names = list(dict.fromkeys(name for name, _, _, _ in used))
        shapes = [self.graph.types[name].shape for name in names]
        if len(np.unique(channels)) < channels.size or any(len(shape) != 4 for shape in shapes):
            raise GraphError("a prologue reads channels of images, each once")
        unit = 4 if all(-(-shape[1] // 4) % 4 == 0 for shape in shapes) else 1
        lanes, start, parts = np.zeros(channels.size, np.int64), 0, list[Part]()
        for name, shift, places, within in used:
            for first, vectors in _runs(within // 4, unit):
                inside = (within >= 4 * first) & (within < 4 * first + VECTOR * vectors)
                lanes[places[inside]] = VECTOR * start + within[inside] - 4 * first
                parts.append(Part(names.index(name), first, vectors, shift))
                start += vectors
        return Prologue(tuple(parts)), names, lanes.reshape(channels.shape)

    def _taken(self, node: Node) -> Node:
        """The q8ta_take_channels that stores the result of a move."""
        channels, names, start = np.zeros(self.graph.types[node.output].shape[1], np.int32), [], 0
        for name, _, places, within in self._used(self.found[node.output]):
            channels[places] = start + within
            names.append(name)
            start += self.graph.types[name].shape[1]
        stored = self.graph.add_constant(f"{node.output}.channels", channels)
        return replace(node, op=TAKE, inputs=(stored, *names), attrs={})


def _runs(words: Channels, unit: int) -> list[tuple[int, int]]:
    """The runs (first word, vectors) that hold all `words`. They begin with a multiple of `unit`."""
    found: list[tuple[int, int]] = []
    for word in np.unique(words).tolist():
        first, vectors = found[-1] if found else (0, 0)
        if word < first + 4 * vectors:
            continue
        if vectors and word < first + 4 * (vectors + 1):
            found[-1] = first, vectors + 1
        else:
            found.append((word // unit * unit, 1))
    return found


def _may_read_parts(node: Node, name: str) -> bool:
    """Whether a node is a convolution that may read a value in parts: of one group, and as its image alone."""
    return (
        node.op == CONVOLUTION and node.attrs["groups"] == 1 and node.inputs.count(name) == 1 and node.inputs[0] == name
    )


def _doublings(node: Node, x: Shape, y: Shape) -> int:
    """How often nearest upsampling doubles both extents of an image, if it does that alone; else 0."""
    for shift in range(1, MOST_SHIFT + 1):
        if y[2:] == (x[2] << shift, x[3] << shift):
            sizes = zip(node.attrs["size"], node.attrs["scale"], strict=True)
            return shift if all(size or scale == 1 << shift for size, scale in sizes) else 0
    return 0
