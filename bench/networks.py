"""Times whole networks on a GPU, in this library and in PyTorch CUDA."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.kernel_sets import general
from bench.models import read
from bench.options import Options
from bench.timing import Loaded, compared, heaviest, load, spin
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device

Shape = tuple[int, ...]
Key = tuple[str, int]

NETWORKS: Mapping[str, tuple[str, Shape]] = {
    "ResNet-50": ("resnet50", (3, 224, 224)),
    "MobileNetV2": ("mobilenet_v2", (3, 224, 224)),
    "sub-pixel to 720p": ("subpixel", (1, 240, 426)),
    "sub-pixel 256x256": ("subpixel", (1, 256, 256)),
    "demo to 720p": ("demo", (1, 240, 426)),
    "ViT-B/16 encoder": ("vit_b16", (197, 768)),
}
"""Title -> file stem and input shape without the batch."""

BATCHES = (1, 32)
TARGETS: Mapping[Key, tuple[float | None, float | None]] = {
    ("ResNet-50", 1): (0.4, 1.0),
    ("ResNet-50", 32): (1.5, None),
    ("MobileNetV2", 1): (0.3, 0.7),
    ("MobileNetV2", 32): (0.75, None),
    ("sub-pixel to 720p", 1): (0.12, None),
    ("sub-pixel to 720p", 32): (1.6, None),
    ("sub-pixel 256x256", 1): (None, 0.5),
    ("demo to 720p", 32): (3.0, None),
    ("ViT-B/16 encoder", 1): (0.6, None),
    ("ViT-B/16 encoder", 32): (3.0, None),
}
"""Target milliseconds on the GPU named TARGETS_OF: of GPU time, and from numpy to numpy."""

TARGETS_OF = "H200"

INT8, WHOLE, MANY = "int8", "int8 end to end", "int8 run_many"
NATIVE, DAWN, UNITS = "wgpu-native", "Dawn", "Dawn, matrix units"
FIRST, FLOAT32 = "general kernels", "float32"
COLUMNS = (
    INT8,
    WHOLE,
    MANY,
    NATIVE,
    DAWN,
    UNITS,
    FIRST,
    FLOAT32,
    "torch f32",
    "torch f32 compiled",
    "torch f16",
    "torch f16 compiled",
)


@dataclass
class Results:
    """Milliseconds by network and batch, then by column."""

    found: dict[Key, dict[str, float]] = field(default_factory=dict)

    def add(self, key: Key, **columns: float) -> None:
        """Adds times and prints them at once, so that an interrupted run has printed what it measured."""
        self.found.setdefault(key, {}).update(columns)
        print(f"{key[0]}, batch {key[1]}: " + ", ".join(f"{k} {ms:.3f} ms" for k, ms in columns.items()), flush=True)

    def save(self, path: Path, adapter: str) -> None:
        """Writes the times as JSON: `--figures docs/networks.json` for README."""
        rows = [
            {"network": name, "batch": batch, **{column: float(f"{ms:.3g}") for column, ms in columns.items()}}
            for (name, batch), columns in self.found.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        now = origin("python -m bench networks torch", adapter, ("torch", "wgpu", "wgpudawn"))
        write(path, {**now, "unit": "ms", "rows": rows}, "rows")

    def __str__(self) -> str:
        """A table of milliseconds on the GPU, in brackets as a multiple of this library's int8."""
        lines = ["| network | batch | " + " | ".join(COLUMNS) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
        for (name, batch), columns in self.found.items():
            cells = []
            for column in COLUMNS:
                ms, ours = columns.get(column), columns.get(INT8)
                times = f" ({ms / ours:.2f})" if ms and ours and column not in (INT8, WHOLE, MANY) else ""
                cells.append("" if ms is None else f"{ms:.3f}{times}")
            lines.append(f"| {name} | {batch} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def end_to_end(run: Callable[[], Any], repeats: int = 30) -> float:
    """Median milliseconds of a call from numpy to numpy."""
    times = []
    for _ in range(repeats + 5):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[5:]))


def part_networks(options: Options, results: Results) -> None:
    """Times int8 on every engine, int8 with the general kernels, and float32, in turns; then end to end."""
    wanted = [
        (title, batch)
        for title, (stem, _) in NETWORKS.items()
        for batch in options.batches or BATCHES
        if (not options.names or stem in options.names) and not (title == "sub-pixel 256x256" and batch > 1)
    ]
    for title, batch in wanted:
        stem, shape = NETWORKS[title]
        model = read(options.models, stem).reshape((batch, *shape))
        float32 = read(options.models, f"{stem}.float32").reshape((batch, *shape))
        programs = _on_engines(model, options.adapter)
        programs[FIRST] = load(model.graph, options.device, keep=general)
        programs[FLOAT32] = load(float32.graph, options.device)
        times = {name: us / 1e3 for name, us in compared(programs).items()}
        _whole(options.adapter, model, (title, batch), results, times)


def _on_engines(model: q8.Model, adapter: str | None) -> dict[str, Loaded]:
    """A model's int8 programs by column: on wgpu-native and, if it is installed, on Dawn."""
    name = f":{adapter}" if adapter else ""
    found = {NATIVE: load(model.graph, open_device(f"wgpu-native{name}"))}
    if engines.dawn() is not None:
        dawn = open_device(f"dawn{name}")
        found[DAWN] = load(model.graph, dawn, target=replace(dawn.target, matrix_units=()))
        if dawn.target.matrix_units:
            found[UNITS] = load(model.graph, dawn)
    return found


def _whole(adapter: str | None, model: q8.Model, key: Key, results: Results, times: dict[str, float]) -> None:
    """Adds the times of a session with default options, also from numpy to numpy. Prints missed targets and the
    slowest dispatches."""
    rng = np.random.default_rng(0)
    inputs = tuple(rng.normal(0, 1, t.shape).astype(np.float32) for t in model.inputs.values())
    with q8.Session(model, adapter) as session:
        device = session.device
        assert device is not None
        on_dawn = device.engine.name == "dawn"
        times = {INT8: times[UNITS if on_dawn and UNITS in times else DAWN if on_dawn else NATIVE], **times}
        spin(session, *inputs)
        times[WHOLE] = end_to_end(functools.partial(session, *inputs), 30 if key[1] == 1 else 10)
        items = [inputs] * (100 if key[1] == 1 else 16)
        times[MANY] = end_to_end(lambda: [None for _ in session.run_many(items)], 3) / len(items)
        results.add(key, **times)
        targets = TARGETS.get(key, ()) if TARGETS_OF in device.name else ()
        for column, target in zip((INT8, WHOLE), targets, strict=False):
            if target is not None and times[column] > target:
                print(f"  MISSED: {column} {times[column]:.3f} ms, target {target} ms")
        print(f"  {session.name}\n{heaviest(session.time(*inputs))}")


def part_torch(options: Options, results: Results) -> None:
    """Times the same architectures in PyTorch CUDA by events: eager, and compiled with CUDA graphs.

    Convolutions are in channels-last order. float32 has PyTorch's defaults (convolutions may use TF32).
    """
    import torch

    for dtype, label in ((torch.float16, "f16"), (torch.float32, "f32")):
        for title, (stem, shape) in NETWORKS.items():
            if options.names and stem not in options.names:
                continue
            module = _module(torch, title).eval().to("cuda", dtype)
            order = torch.channels_last if len(shape) == 3 else torch.contiguous_format
            module = module.to(memory_format=order)
            for batch in (1,) if title == "sub-pixel 256x256" else options.batches or BATCHES:
                x = torch.randn(batch, *shape, device="cuda", dtype=dtype).to(memory_format=order)
                torch._dynamo.reset()
                compiled = torch.compile(module, mode="reduce-overhead", dynamic=False)
                with torch.inference_mode():
                    eager = cuda_ms(torch, functools.partial(module, x))
                    graphs = cuda_ms(torch, functools.partial(compiled, x))
                results.add((title, batch), **{f"torch {label}": eager, f"torch {label} compiled": graphs})


def _module(torch: Any, title: str) -> Any:
    """The module of a title, with random weights."""
    if title.startswith("sub-pixel"):
        from testbed.networks import subpixel

        return subpixel()
    if title.startswith("demo"):
        from demo.network import SuperResolution

        return SuperResolution()
    from torchvision import models  # type: ignore[import-not-found, unused-ignore]

    if title.startswith("ViT"):
        norm = functools.partial(torch.nn.LayerNorm, eps=1e-6)
        return models.vision_transformer.Encoder(197, 12, 12, 768, 3072, 0.0, 0.0, norm)
    return {"ResNet-50": models.resnet50, "MobileNetV2": models.mobilenet_v2}[title]()


def cuda_ms(torch: Any, run: Callable[[], Any], repeats: int = 30) -> float:
    """The median time of a call in CUDA, in milliseconds."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times[10:]))
