"""Graphs of a 1x1 convolution and the depthwise one behind it, as at the beginning of inverted residuals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.conv2d.conv2d_expanded import POINTWISE
from q8ta_wgpu.passes.fold_producers import fold_expansions
from testbed import epilogue_graphs, op_graphs
from testbed.op_graphs import SETTINGS, Setting

CONV = OPS["conv2d"]


@dataclass(frozen=True)
class Expansion:
    """An image (n, c, h, w), the channels that a 1x1 convolution makes of it, and stride, padding and window of the
    depthwise convolution."""

    image: tuple[int, int, int, int]
    channels: int
    stride: int = 1
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    window: int = 3

    def graph(self, setting: Setting, after: str = "") -> tuple[Graph, dict[str, Array]]:
        """The two convolutions, and inputs. `after` follows the second, one of `epilogue_graphs.EPILOGUES`."""
        n, c, h, w = self.image
        inner_setting = Setting((setting.zeros[2], 0, setting.zeros[0]), setting.mode)
        shapes = (self.image, (self.channels, c, 1, 1), (self.channels,))
        inner, given = op_graphs.int8_graph(CONV, Case(shapes, POINTWISE), inner_setting)
        attrs = {"stride": (self.stride,) * 2, "padding": self.padding, "dilation": (1, 1), "groups": self.channels}
        case = Case(((n, self.channels, h, w), (self.channels, 1, self.window, self.window), (self.channels,)), attrs)
        build = epilogue_graphs.epilogue_graph if after else op_graphs.int8_graph
        graph, inputs = build(CONV, case, setting, *((after,) if after else ()))
        names = {name: "x0" if name == "y" else f"inner.{name}" for name in (*inner.types, *inner.constants)}
        graph.types |= {names[name]: t for name, t in inner.types.items()}
        graph.constants |= {names[name]: array for name, array in inner.constants.items()}
        (node,) = inner.nodes
        graph.nodes.insert(0, replace(node, inputs=tuple(names[name] for name in node.inputs), output="x0"))
        graph.inputs = [names["x0"], *(name for name in graph.inputs if name != "x0")]
        del inputs["x0"]
        return graph, {names["x0"]: given["x0"], **inputs}


EXPANSIONS = {
    "vectors, rows and columns beyond a workgroup": Expansion((2, 16, 9, 17), 24),
    "words, stride 2": Expansion((2, 24, 15, 13), 20, stride=2),
    "narrow, lanes beyond the last channel": Expansion((3, 40, 5, 7), 33),
    "padded at one side": Expansion((1, 3, 16, 8), 6, stride=2, padding=(0, 0, 1, 1)),
    "wide padding": Expansion((1, 64, 3, 2), 4, padding=(3, 2, 2, 3)),
}
"""Expansions that a depthwise convolution computes, by what is special."""


def graphs(target: Target) -> Iterator[Graph]:
    """The fused graph of each of EXPANSIONS."""
    for expansion in EXPANSIONS.values():
        graph, _ = expansion.graph(SETTINGS[0])
        fold_expansions(graph, target)
        graph.prune()
        yield graph
