"""Compares operators on int8 and on int16, with results of the same width, timed in turns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import origin, write
from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.ir.layout import Shape
from testbed.graphs import between_integers

_CONV = {"stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}

CASES: Mapping[str, tuple[str, tuple[Shape, ...], tuple[Shape, ...], dict[str, Any]]] = {
    "linear 6304x768x768": ("linear", ((6304, 768),), ((768, 768), (768,)), {}),
    "linear 512x2048x2048": ("linear", ((512, 2048),), ((2048, 2048), (2048,)), {}),
    "conv2d 8x128x28x28 3x3": ("conv2d", ((8, 128, 28, 28),), ((128, 128, 3, 3), (128,)), _CONV),
    "conv2d 8x256x14x14 1x1": (
        "conv2d",
        ((8, 256, 14, 14),),
        ((1024, 256, 1, 1), (1024,)),
        {**_CONV, "padding": (0, 0, 0, 0)},
    ),
    "matmul 96x197x64x197": ("matmul", ((96, 197, 64), (96, 64, 197)), (), {}),
    "layer_norm 6304x768": ("layer_norm", ((6304, 768),), ((768,), (768,)), {"eps": 1e-6}),
    "softmax 96x197x197": ("softmax", ((96, 197, 197),), (), {"dim": 2}),
    "gelu 6304x3072": ("gelu", ((6304, 3072),), (), {}),
    "mul 6304x3072": ("mul", ((6304, 3072), (6304, 3072)), (), {}),
    "add 6304x768": ("add", ((6304, 768), (6304, 768)), (), {"alpha": 1.0}),
    "mean 32x256x56x56": ("mean", ((32, 256, 56, 56),), (), {"dims": (2, 3), "keepdim": True}),
}
"""Title -> (operator, shapes of activations, shapes of constants, attributes)."""


FIGURES = Path("docs/widths.json")


def part_widths(options: Options) -> None:
    """Prints median microseconds with 8 and with 16 bits, and writes docs/widths.json if all cases were requested."""
    rows = []
    for name in options.names or CASES:
        graphs = {dtype: between_integers(*CASES[name], dtype) for dtype in (INT8X4, INT16X4)}
        floats = [node.op for node in graphs[INT16X4].nodes if node.op in (CASES[name][0], "quantize")]
        if floats:
            print(f"{name}: no form in int16: {'; '.join(graphs[INT16X4].notes)}")
            continue
        times = compared({dtype: load(graph, options.device) for dtype, graph in graphs.items()})
        narrow, wide = times[INT8X4], times[INT16X4]
        rows.append({"operator": name, "int8": round(narrow, 1), "int16": round(wide, 1)})
        print(f"{name:<26} {narrow:>10.1f} us {wide:>10.1f} us {wide / narrow:>6.2f}", flush=True)
    if not options.names:
        now = origin("python -m bench widths", options.card, ("wgpu", "wgpudawn"))
        write(FIGURES, {**now, "unit": "microseconds", "rows": rows}, "rows")
