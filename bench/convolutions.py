"""Compares kernels of convolutions: grouped, transposed, im2col, first layers that read a float image.

Kernels of one shape are timed in turns, so that other work on the machine slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.ir.target import SOFTWARE
from q8ta_wgpu.passes.fold_image import fold_image
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.use_im2col import rewritable, with_im2col
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import candidates, chosen, conv, macs, plan_for, transposed

BATCHES = (1, 32)


def compare(device: Device, name: str, graph: Graph) -> None:
    """Prints the time of every kernel of a graph's node, fastest first, and its speed-up over the general one."""
    kernels = candidates(graph, device)
    found = compared({kernel.name: load(graph, device, plan_for(graph, kernel)) for kernel in kernels})
    general = next(us for label, us in found.items() if label.endswith(".direct"))
    pick = chosen(graph, device).name
    print(f"{name}: {2e-6 * macs(graph) / found[pick]:.3f} TOPS, {general / found[pick]:.1f} times the general kernel")
    for label, us in sorted(found.items(), key=lambda item: item[1]):
        mark = "<- chosen" if label == pick else ""
        print(f"  {label.partition('.')[2]:<18} {us:>10.1f} us {2e-6 * macs(graph) / us:>7.3f} TOPS {mark}", flush=True)


GROUPED: tuple[tuple[int, int, int, int, int, int], ...] = (
    # channels in, channels out, size, kernel, stride, groups
    (128, 128, 56, 3, 1, 32),
    (256, 256, 56, 3, 2, 32),
    (256, 256, 28, 3, 1, 32),
    (512, 512, 28, 3, 2, 32),
    (512, 512, 14, 3, 1, 32),
    (1024, 1024, 14, 3, 2, 32),
    (1024, 1024, 7, 3, 1, 32),
    (240, 60, 28, 1, 1, 3),
    (60, 240, 28, 1, 1, 3),
    (96, 256, 27, 5, 1, 2),
)
"""ResNeXt-50 32x4d's 3x3 convolutions (Xie et al. 2017), two of ShuffleNet's 1x1 (Zhang et al. 2018), and AlexNet's
second."""


def part_grouped(options: Options) -> None:
    """Times grouped convolutions with the strip kernels and the general kernel."""
    device = options.device
    for batch in options.batches or BATCHES:
        for inputs, outputs, size, kernel, stride, groups in GROUPED:
            graph = conv((batch, inputs, size, size), outputs, kernel, stride, groups)
            compare(device, f"b{batch} {inputs}x{size} {kernel}x{kernel} s{stride} g{groups} -> {outputs}", graph)


TRANSPOSED: tuple[tuple[int, int, int, int, int, int], ...] = (
    # channels in, channels out, size, kernel, stride, padding
    (1024, 512, 14, 2, 2, 0),
    (512, 256, 28, 2, 2, 0),
    (256, 128, 56, 2, 2, 0),
    (128, 64, 112, 2, 2, 0),
    (2048, 256, 8, 4, 2, 1),
    (256, 256, 16, 4, 2, 1),
    (256, 256, 32, 4, 2, 1),
    (64, 64, 64, 3, 2, 1),
    (32, 1, 128, 9, 3, 4),
)
"""U-Net's up-convolutions (Ronneberger et al. 2015), the heads of Simple Baselines for pose (Xiao et al. 2018), a 3x3,
and FSRCNN's last layer (Dong et al. 2016)."""


def part_transposed(options: Options) -> None:
    """Times transposed convolutions as tiled products and with the general kernel."""
    device = options.device
    for batch in options.batches or BATCHES:
        for inputs, outputs, size, kernel, stride, padding in TRANSPOSED:
            graph = transposed((batch, inputs, size, size), outputs, kernel, stride, padding)
            compare(device, f"b{batch} {inputs}x{size} {kernel}x{kernel} s{stride} -> {outputs}", graph)


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
