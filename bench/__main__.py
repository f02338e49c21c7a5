"""Measures kernels and whole networks: `python -m bench PART... [options]`.

GPU times are medians by timestamp queries after a warm-up. Figures in one line were timed in turns. Compare only
figures of one run. Parts run in the order of the arguments.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.compare import main as compare
from bench.networks import Results
from bench.options import Options
from q8ta_wgpu.errors import Q8taError

PARTS: Mapping[str, tuple[str, str, str]] = {
    # part: module, function, what it does
    "save": ("models", "part_save", "write the models that other parts read (needs torch)"),
    "gemm": ("products", "part_gemm", "int8 matrix products, every kernel"),
    "widths": ("widths", "part_widths", "operators on int8 and on int16"),
    "family": ("family", "part_family", "the speeds of tiles on an adapter, as a file for kernels/product/families"),
    "im2col": ("convolutions", "part_im2col", "windows copied for a product, against a product that gathers them"),
    "image": ("convolutions", "part_image", "first layers that quantize their image, against two dispatches"),
    "decoder": (
        "decoder",
        "part_decoder",
        "a token of a decoder of Llama-3.2-1B's shape (needs a GPU, torch, and its saved models)",
    ),
    "tokens": ("tokens", "part_tokens", "how often the demo's decoder chooses float's token (needs torch, torchao)"),
    "networks": ("networks", "part_networks", "whole networks: int8, general kernels, float32, end to end"),
    "torch": ("networks", "part_torch", "the same networks in PyTorch CUDA (needs torch and torchvision)"),
    "upstream-convolution": ("upstream", "part_convolution", "ResNet-50 with kernels by rule and with general ones"),
    "upstream-gemv": ("upstream", "part_gemv", "matrix-vector kernels against tiles"),
    "upstream-pixel-shuffle": ("upstream", "part_pixel_shuffle", "pixel_shuffle in int8 against the float chain"),
    "upstream-clones": ("upstream", "part_clones", "layout transitions with and without fusion"),
    "engines": (
        "engines",
        "part_engines",
        "bytes of every kernel by every engine, Node and Chromium; docs/kernels.json",
    ),
    "onnx": ("onnx_modules", "part_onnx", "torch modules that ONNX Runtime quantized, into docs/onnx.json"),
    "onnx-files": (
        "onnx_files",
        "part_onnx_files",
        "ONNX files in packages of PyPI and npm, into docs/onnx_files.json",
    ),
    "onnx-packages": ("onnx_packages", "part_onnx_packages", "packages that use ONNX Runtime, with this in its place"),
    "web": ("web", "part_web", "q8ta.js beside onnxruntime-web's WebGPU and WASM int8, in Chromium"),
    "accuracy": (
        "accuracy",
        "part_accuracy",
        "int8 beside float on real data, into docs/accuracy.json (needs the extra accuracy)",
    ),
    "gpus": ("gpus", "part_gpus", "rows a second by one adapter and by all equal ones; Ray's actors (needs ray)"),
    "soak": ("soak", "part_soak", "memory, objects and bytes over many sessions, runs and threads"),
    "zoo": (
        "zoo",
        "part_zoo",
        "architectures of six libraries, torchvision and others, into docs/zoo.json (needs the extra zoo)",
    ),
    "start": ("start", "part_start", "seconds from a file to the first result, with cold and warm caches"),
    "page": ("page", "part_page", "seconds of the first load of a page in Chromium, into docs/page.json"),
    "peers": ("peers", "part_peers", "the same networks in other runtimes, as far as installed, into docs/peers.json"),
    "figures": ("figures", "part_figures", "make the blocks of README and docs anew from the JSON files in docs"),
    "fuzz": ("fuzz", "part_fuzz", "model files and tuning caches at random"),
    "compare": ("compare", "main", "this tree beside another commit: compare OTHER [--device NAME] [--limit 1.2]"),
    "amd": (
        "amd",
        "part_amd",
        "every kernel by AMD's compiler, for GPUs that are not there (Linux)",
    ),
    "onnx-fuzz": ("onnx_fuzz", "part_onnx_fuzz", "ONNX files of packages, mutated at random"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the requested parts. Arguments are those of the command line, unless others are given."""
    given = sys.argv[1:] if arguments is None else arguments
    listed = "\n".join(f"  {name:<24}{text}" for name, (_, _, text) in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"{__doc__}\nparts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    parser.add_argument("--device", help="part of an adapter's name")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of .q8ta files")
    parser.add_argument("--figures", type=Path, default=Path("out/networks.json"), help="times of whole networks")
    parser.add_argument("--batch", type=int, nargs="*", default=[], help="batch sizes (default: each part's own)")
    parser.add_argument("--names", nargs="*", default=[], help="networks or cases, by spaces or commas (default: all)")
    parser.add_argument("--count", type=int, default=10_000, help="how often what lasts or breaks is tried")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (zoo, accuracy, onnx-files)")
    parser.add_argument("--sets", type=int, default=5, help="sets of calibration data (accuracy)")
    parser.add_argument("--items", type=int, default=1, help="inputs to calibrate with, and others to judge by (zoo)")
    parser.add_argument("--draws", type=int, default=1, help="draws of weights and inputs of each network (zoo)")
    parser.add_argument("--without", nargs="*", default=[], metavar="RULE", help="rules to leave out (accuracy)")
    parser.add_argument("--ablate", action="store_true", help="leave out each rule in turn (accuracy)")
    if given[:1] == ["compare"]:
        compare(given[1:])
    args = parser.parse_args(given)
    names = [name for listed in args.names for name in listed.split(",")]
    numbers = args.count, args.jobs, args.sets, args.items, args.draws, args.without, args.ablate
    options = Options(args.device, args.models, args.batch, names, args.figures, *numbers)
    results = Results()
    try:
        _run(args.parts, options, results)
    finally:  # an interrupted run keeps what it measured
        if results.found:
            print(results)
            results.save(options.figures, options.card)


def _run(parts: Sequence[str], options: Options, results: Results) -> None:
    for name in parts:
        module, function, _ = PARTS[name]
        part: Callable[..., None] = getattr(importlib.import_module(f"bench.{module}"), function)
        start = time.perf_counter()
        if name not in (
            "accuracy",
            "amd",
            "engines",
            "figures",
            "onnx",
            "onnx-files",
            "onnx-packages",
            "page",
            "peers",
            "save",
            "web",
            "zoo",
        ):
            print(options.device.name)
        try:
            part(options, results) if name in ("networks", "torch") else part(options)
        except Q8taError as error:
            sys.exit(f"{name}: {error}")
        print(f"-- {name}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
