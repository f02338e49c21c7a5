"""Compares kernels of convolutions: im2col, first layers that read a float image.

Kernels of one shape are timed in turns, so that other work on the machine slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.graph import Node, TensorType
from q8ta_wgpu.ir.target import SOFTWARE
from q8ta_wgpu.passes.fold_producers import fold_image
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.use_im2col import rewritable, with_im2col
from testbed.graphs import conv

BATCHES = (1, 32)


WINDOWS: tuple[tuple[int, int, int, int, int], ...] = (
    # channels in, size, channels out, kernel, stride
    (64, 56, 64, 3, 1),
    (128, 56, 128, 3, 2),
    (128, 28, 128, 3, 1),
    (256, 28, 256, 3, 2),
    (256, 14, 256, 3, 1),
    (512, 14, 512, 3, 2),
    (512, 7, 512, 3, 1),
)
"""ResNet-50's 3x3 convolutions."""


def part_im2col(options: Options) -> None:
    """Times im2col and a 1x1 convolution, two dispatches, and the convolution that gathers windows while it loads."""
    device = options.device
    for batch in options.batches or BATCHES:
        for inputs, size, outputs, kernel, stride in WINDOWS:
            graph = conv((batch, inputs, size, size), outputs, kernel, stride)
            copied = with_im2col(graph, rewritable(graph))
            plans = {name: sync_layouts(g, device.target) for name, g in (("one", graph), ("two", copied))}
            found = compared(
                {"one": load(graph, device, plans["one"]), "two": load(copied, device, plans["two"])},
            )
            used = {name: " + ".join(s.variant.kernel.name for s in plan.steps) for name, plan in plans.items()}
            print(
                f"b{batch} {inputs}x{size} {kernel}x{kernel} s{stride} -> {outputs}: one {found['one']:.1f} us "
                f"({used['one']}), two {found['two']:.1f} us ({used['two']}), ratio {found['two'] / found['one']:.2f}",
                flush=True,
            )


IMAGES: Mapping[str, tuple[int, int, int, int, int]] = {
    # channels in, size, channels out, kernel, stride
    "ResNet-50": (3, 224, 64, 7, 2),
    "MobileNetV2": (3, 224, 32, 3, 2),
    "sub-pixel": (1, 256, 64, 5, 1),
    "VGG": (3, 224, 64, 3, 1),
}
"""First layers that read a float image."""


def part_image(options: Options) -> None:
    """Times a dispatch that quantizes a float image plus a convolution, and a convolution that quantizes on load."""
    device = options.device
    for batch in options.batches or BATCHES:
        for name, (inputs, size, outputs, kernel, stride) in IMAGES.items():
            graph = conv((batch, inputs, size, size), outputs, kernel, stride)
            (x,) = graph.inputs
            graph.inputs, graph.types["image"] = ["image"], TensorType(graph.types[x].shape)
            graph.nodes.insert(0, Node("quantize", ("image",), x, {"lo": -128, "hi": 127}))
            folded = graph.copy()
            fold_image(folded, SOFTWARE)  # where it always pays
            folded.prune()
            plans = {"two": (graph, sync_layouts(graph, device.target))}
            plans["one"] = (folded, sync_layouts(folded, device.target))
            found = compared({label: load(g, device, plan) for label, (g, plan) in plans.items()})
            kernels = {
                label: " + ".join(s.variant.kernel.name for s in plan.steps) for label, (_, plan) in plans.items()
            }
            print(
                f"b{batch} {name} {inputs}x{size} {kernel}x{kernel} s{stride} -> {outputs}: "
                f"{found['two']:.1f} us ({kernels['two']}), folded {found['one']:.1f} us ({kernels['one']}), "
                f"ratio {found['one'] / found['two']:.3f}",
                flush=True,
            )
