"""The blocks of README and docs that `bench.figures` fills, each made of a JSON file in docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from bench.figures import Data, read, source, table

Row = Mapping[str, Any]

TITLES = {
    "ResNet-50": "ResNet-50",
    "MobileNetV2": "MobileNetV2",
    "sub-pixel to 720p": "sub-pixel ×3 to 1280×720",
    "sub-pixel 256x256": "sub-pixel ×3 of 256×256",
    "demo to 720p": "the demo's, to 1280×720",
    "ViT-B/16 encoder": "encoder of ViT-B/16",
}
"""Networks as `python -m bench networks` names them, and as pages do."""


def speed() -> str:
    """README's table of GPU times on a large GPU."""
    data = read("networks")
    columns = ("int8", "torch f32 compiled", "torch f16 compiled")
    rows = [
        (TITLES[row["network"]], row["batch"], *(f"{row[column]:.3g}" for column in columns))
        for row in data["rows"]
        if row["network"] != "sub-pixel 256x256"
    ]
    made = table(("network", "batch", "int8 here", "PyTorch float32", "PyTorch float16"), rows)
    return f"{made}\n\n{source(data, 'networks', 'docs/')}"


def networks() -> str:
    """The same with calls from numpy to numpy, and with the engines apart."""
    data = read("networks")
    columns = {
        "int8": "int8",
        "int8 end to end": "numpy to numpy",
        "int8 run_many": "`run_many`",
        "torch f32 compiled": "PyTorch float32",
        "torch f16 compiled": "PyTorch float16",
    }
    rows = [
        (TITLES[row["network"]], row["batch"], *(f"{row[column]:.3g}" for column in columns)) for row in data["rows"]
    ]
    return f"{table(('network', 'batch', *columns.values()), rows)}\n\n{source(data, 'networks')}"


OURS, NCNN, RUNTIME = "q8ta_wgpu int8", "ncnn int8, Vulkan", "ONNX Runtime int8 QDQ, CPU"


def without_a_gpu() -> str:
    """README's sentence on software adapters."""
    found = read("peers")["networks"]
    ours = {name: found[name][OURS]["ms"] for name in ("resnet50", "mobilenet_v2")}
    ncnn = {name: found[name][NCNN]["times"] for name in ours}
    slower = {name: 1 / found[name][RUNTIME]["times"] for name in ours}
    return (
        f"On two cores without a GPU (lavapipe) an image takes {ours['resnet50']:.0f} ms with ResNet-50 and "
        f"{ours['mobilenet_v2']:.0f} with MobileNetV2. ncnn's Vulkan int8 takes {ncnn['resnet50']:.1f} and "
        f"{ncnn['mobilenet_v2']:.1f} times as long. Kernels written for the CPU are faster there: ONNX Runtime's, "
        f"{slower['resnet50']:.0f} and {slower['mobilenet_v2']:.0f} times."
    )


def peers() -> str:
    """Milliseconds of a call by runtime and network, and the multiple of ours."""
    data = read("peers")
    found: dict[str, Data] = data["networks"]
    names = {"resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2", "subpixel": "sub-pixel ×3"}

    def cell(row: Row) -> str:
        ms = float(f"{row.get('ms', 0):.3g}")
        return "does not run" if row["missing"] else f"{ms:,g} ({row['times']:.2f})"

    order = sorted(found["resnet50"], key=lambda peer: float(found["resnet50"][peer].get("times") or 1e9))
    rows = [(peer, *(cell(found[name][peer]) for name in names)) for peer in order]
    return f"{table(('runtime', *names.values()), rows)}\n\n{source(data, 'peers')}"


def decoder() -> str:
    """Milliseconds of a token and of 512 tokens of a decoder."""
    data = read("decoder")
    rows = [(row[""], f"{row['a token']:.3g}", f"{row['512 tokens']:.3g}") for row in data["rows"]]
    return f"{table(('', 'ms a token', 'ms for 512 tokens'), rows)}\n\n{source(data, 'decoder')}"


def products() -> str:
    """A sentence on int8 products: a linear of ViT-B/16 for 32 images."""
    data = read("products")
    (row,) = (row for row in data["rows"] if row["rows x inputs x outputs"] == "6304x3072x768")
    return (
        f"An int8 product of 6304×3072×768 makes {row['packed']:.0f} tera-operations a second by packed dot "
        f"products and {row['units']:.0f} on matrix units; `torch._int_mm`, cuBLASLt's, makes "
        f"{row['torch._int_mm']:.0f}.\n\n{source(data, 'products')}"
    )


def sixteen_bits() -> str:
    """A sentence on what int16 costs."""
    data = read("widths")
    times = [(row["int16"] / row["int8"], row["operator"]) for row in data["rows"]]
    (least, cheap), (most, dear) = min(times), max(times)
    return (
        f"An operator on int16 takes {least:.2g} ({cheap}) to {most:.2g} times ({dear}) as long as on int8.\n\n"
        f"{source(data, 'widths')}"
    )


def opening() -> str:
    """Seconds of cold and warm starts."""
    data = read("start")
    rows = [(row["start"], *(row.get(column, "") for column in ("open", "second", "total"))) for row in data["rows"]]
    return f"{table(('', 'session', 'second session', 'from `python` on'), rows)}\n\n{source(data, 'start')}"


def page() -> str:
    """Seconds of the first load of a page."""
    data = read("page")
    rows = [(row["page"], row["load"], row["first"], row["total"]) for row in data["rows"]]
    return f"{table(('', 'load', 'first run', 'both'), rows)}\n\n{source(data, 'page')}"


def amd() -> str:
    """What AMD's compiler makes of the kernels, by family."""
    data = read("amd")
    columns = ("family", "is", "packed dots", "kernels", "failed", "spilled", "below 4 waves")
    places = [data["columns"].index(column) for column in columns]
    return f"{table(columns, [[row[i] for i in places] for row in data['rows']])}\n\n{source(data, 'amd')}"


def zoo() -> str:
    """A sentence on the networks that were tried."""
    data = read("zoo")
    rows: list[Row] = data["rows"]
    below = [row["snr_db"] - row["yardstick_db"] for row in rows if None not in (row["snr_db"], row["yardstick_db"])]
    below.sort()
    return (
        f"{data['ran']} of {data['tried']} architectures compile and run, {data['equal']} of them with 0 mismatches; "
        f"{100 * data['int8_share']:.1f} % of their multiply-adds are int8. The median of their signal to noise is "
        f"{below[len(below) // 2]:+.1f} dB beside the yardstick's, and {sum(d < -1.5 for d in below)} are more than "
        f"1.5 dB below it.\n\n{source(data, 'zoo')}"
    )


def tried() -> str:
    """README's row on the same."""
    data = read("zoo")
    return (
        f"{data['ran']} of {data['tried']} architectures of torchvision, timm, transformers, diffusers, "
        f"segmentation_models_pytorch and torchaudio run, {data['equal']} with 0 mismatches "
        "([the list](docs/zoo.md))."
    )


def scores() -> str:
    """Scores of trained networks."""
    data = read("accuracy")
    names = ("XNNPACK", "X86Inductor", "yardstick", "ours")
    rows = [
        (
            row["network"],
            row["unit"],
            f"{row['float']:.2f}",
            *(f"{row[name]:.2f}" if isinstance(row[name], float) else row[name] for name in names),
            "{:+.2f} ± {:.2f}".format(*row["above"]) if row["above"] else "",
        )
        for row in data["scores"]
    ]
    return f"{table(('network', 'unit', 'float', *names, 'ours above'), rows)}\n\n{source(data, 'accuracy')}"


def noise() -> str:
    """How signal to noise is spread over the suite, and its lowest rows."""
    rows: list[Row] = [row for row in read("accuracy")["noise"] if row["above"]]
    ranked = sorted(rows, key=lambda row: float(row["above"][0]))
    low = ", ".join(f"{row['network']} {row['above'][0]:+.1f}" for row in ranked[:4])
    high = ", ".join(f"{row['network']} {row['above'][0]:+.1f}" for row in ranked[:-4:-1])
    near = sum(row["above"][0] > -1 for row in rows)
    return (
        f"Of {len(rows)} networks {near} come within a decibel of the yardstick or pass it. The lowest are {low} dB; "
        f"the highest {high} dB. docs/accuracy.json has every row, with XNNPACK's."
    )


def rules() -> str:
    """What each rule of the quantizer gains on the suite, and its guard."""
    data = read("rules")
    found = []
    for rule in data["rules"]:
        own = [row for row in data["rows"] if row["rule"] == rule["rule"]]
        gains = [
            f"{row['network']} {row['with'] - row['without']:+.1f}" for row in own if row["with"] != row["without"]
        ]
        found.append((rule["rule"], rule["width"], len(own), ", ".join(gains) or "none", rule["guard"], rule["worth"]))
    columns = ("rule", "width", "networks with such values", "gain in dB", "guard", "which loses without it")
    return f"{table(columns, found)}\n\n{source(data, 'rules')}"


def adapters() -> str:
    """Kernels compared with the reference, by adapter."""
    data = read("kernels")
    columns = data["columns"]
    wrong = [f"{name}: {', '.join(each['wrong'])}" for name, each in columns.items() if each["wrong"]]
    least, most = (pick(each["kernels"] for each in columns.values()) for pick in (min, max))
    return (
        f"Of {least} to {most} kernels on each of {len(columns)} adapters, engines apart, none gave other bytes"
        f"{' but ' + '; '.join(wrong) if wrong else ''}.\n\n{source(data, 'kernels')}"
    )


def faults() -> str:
    """What was tried at length."""
    data = read("faults")
    fuzzed = {row["what"]: row["count"] for row in data["rows"]}
    calls = sum(row["count"] for row in data["rows"] if "mutated" not in row["what"])
    return (
        f"{fuzzed['a model file is mutated']:,} mutated model files were refused with an error, or ran with the "
        f"reference's bytes. In {calls:,} openings and calls, by up to eight threads, every byte was right and no "
        "process crashed.\n\n" + source(data, "faults", "docs/")
    )


def onnx() -> str:
    """Agreement with ONNX Runtime over all networks of static forms."""
    data = read("onnx")
    rows = [row for forms in data["rows"].values() for form, row in forms.items() if form != "dynamic"]
    equal, steps = (100 * min(row["equal"] for row in rows), max(row["steps"] for row in rows))
    return (
        f"Of {len(data['rows'])} networks, as QDQ and as QOperator, {equal:.3f} % and more of the int8 elements are "
        f"ONNX Runtime's; none is more than {steps} steps off.\n\n{source(data, 'onnx')}"
    )


def real_files() -> str:
    """Files of packages: which run, and what int8 gives beside ONNX Runtime's quantizer."""
    data = read("onnx_files")
    runs = [row for row in data["rows"] if row["runs"]]
    int8 = [row for row in runs if "exact" in row.get("in int8", {})]
    slow = sum("why" in row.get("in int8", {}) for row in runs)
    times = [made["times ONNX Runtime"] for row in int8 if "times ONNX Runtime" in (made := row["in int8"])]
    models = [made for row in runs for made in (row, row.get("in int8", {})) if made.get("exact")]
    both = [(row["in int8"], row["ONNX Runtime"]) for row in int8 if "why" not in row["ONNX Runtime"]]
    packages = len({row["file"].split(": ")[0] for row in data["rows"]})
    noise = [(ours["dB"], theirs["dB"]) for ours, theirs in both if "dB" in ours and "dB" in theirs]
    tasks = [(ours["decisions"], theirs["decisions"]) for ours, theirs in both if "decisions" in ours]
    means = [sum(each) / max(len(tasks), 1) for each in zip(*tasks, strict=True)]
    quieter, differ = sum(ours >= theirs for ours, theirs in noise), sum(made["differ"] > 0 for made in models)
    louder = sum(ours < theirs - 1 for ours, theirs in noise)
    as_good = sum(ours >= theirs for ours, theirs in tasks)
    left = f" {slow} float ones take too long to quantize here, as their rows say." if slow else ""
    took = f" A call takes {median(times):.1f} times ONNX Runtime's processor time in the median." if times else ""
    return (
        f"{len(runs)} of {len(data['rows'])} files from {packages} packages run, the others are refused by name. Of "
        f"the {len(int8)} float ones that were quantized, ONNX Runtime's quantizer makes a file that loads of "
        f"{len(both)}; {quieter} of {len(noise)} have less noise here, of {louder} it is more than a decibel larger, "
        f"and {as_good} of {len(tasks)} decide as the float file does at least as often: {100 * means[0]:.1f} % of "
        f"decisions in the mean, {100 * means[1]:.1f} % with ONNX Runtime's.{left} Of {len(models)} models that "
        f"`report.exact` calls so, {differ} differ on the device.{took}\n\n{source(data, 'onnx_files')}"
    )


def gpus() -> str:
    """Rows a second of one GPU and of two."""
    data = read("gpus")
    names = {"resnet50_uint8": "ResNet-50", "demo_uint8": "the demo's"}
    rows = [
        (names[row["network"]], *(f"{each:,}" for each in (*row["run_many"], *row["actors"]))) for row in data["rows"]
    ]
    columns = ("network", "`run_many`, one", "both", "an actor on one", "on each")
    return f"{table(columns, rows)}\n\n{source(data, 'gpus')}"


def tokens() -> str:
    """Tokens that stay float's, by precision."""
    data = read("tokens")
    rows = [
        (
            row["quantized"],
            f"{row['same']:.2f} % ± {row['error']:.2f} %",
            f"{row['perplexity']:+.2f} %",
            "exact" if row["snr_db"] is None else f"{row['snr_db']:.0f} dB",
        )
        for row in data["rows"]
    ]
    return f"{table(('', 'same tokens', 'perplexity', 'signal to noise'), rows)}\n\n{source(data, 'tokens')}"


def web() -> str:
    """Milliseconds of a run in a browser."""
    data = read("web")
    names = {"demo": "the demo's, 64×48 to 192×144", "mobilenet_v2": "MobileNetV2, 224×224"}
    runs = ("q8ta.js", "webgpu", "wasm")
    rows = [(names[row["network"]], *(f"{row[run]:,} ms" for run in runs)) for row in data["rows"]]
    columns = ("network", "q8ta.js", "onnxruntime-web, WebGPU", "onnxruntime-web, WASM")
    return f"{table(columns, rows)}\n\n{source(data, 'web')}"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "speed": speed,
    "networks": networks,
    "without a gpu": without_a_gpu,
    "peers": peers,
    "decoder": decoder,
    "products": products,
    "16 bits": sixteen_bits,
    "opening": opening,
    "page": page,
    "amd": amd,
    "zoo": zoo,
    "tried": tried,
    "scores": scores,
    "noise": noise,
    "rules": rules,
    "adapters": adapters,
    "faults": faults,
    "onnx": onnx,
    "onnx files": real_files,
    "gpus": gpus,
    "tokens": tokens,
    "web": web,
}
