"""Architectures that people bring: those of torchvision, timm and transformers, with random weights, one after another.

Each network is quantized, compiled, run and compared with the numpy reference in a process of its own with a time
limit; its row is appended to a JSON file when it is done, so that a run can be stopped and goes on where it was. The
rows are written as a table to docs/zoo.md. Needs the extra `zoo`. Run with `--device`, other adapters' rows join.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.options import Options
from q8ta_wgpu.progress import through

Row = dict[str, Any]

LIMIT = 600
"""Seconds a network may take."""

RESULTS = Path("out/zoo.json")
TABLE = Path("docs/zoo.md")

SIZES = (64, 96, 128, 224)
"""Sides of the images that are tried, before a network's own."""

TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5
    squeezenet1_0 swin_t swin_v2_t vgg11_bn vit_b_16 segmentation.fcn_resnet50
    segmentation.deeplabv3_mobilenet_v3_large segmentation.lraspp_mobilenet_v3_large
"""

TIMM = """
    beit_base_patch16_224 botnet26t_256 cait_xxs24_224 coat_lite_tiny coatnet_nano_rw_224 convit_tiny convmixer_768_32
    convnext_atto convnextv2_atto crossvit_tiny_240 cs3darknet_s cspresnet50 darknet53 davit_tiny
    deit_tiny_patch16_224 deit3_small_patch16_224 dla34 dm_nfnet_f0 dpn68 eca_resnet33ts edgenext_xx_small
    efficientformer_l1 efficientformerv2_s0 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fastvit_t8
    fbnetc_100 focalnet_tiny_srf gcresnet33ts gcvit_xxtiny ghostnet_100 ghostnetv2_100 gmixer_12_224 gmlp_ti16_224
    halonet26t hardcorenas_a hgnetv2_b0 hiera_tiny_224 hrnet_w18_small inception_next_atto inception_v4
    lambda_resnet26t lcnet_050 levit_128s mambaout_femto maxvit_nano_rw_256 mixer_s32_224 mixnet_s
    mobilenetv1_100 mobilenetv4_conv_small mobileone_s0 mobilevit_xxs mobilevitv2_050 mvitv2_tiny nest_tiny
    nextvit_small nf_resnet50 pit_ti_224 poolformer_s12 pvt_v2_b0 regnety_002 repghostnet_050 repvgg_a0 repvit_m0_9
    res2net50_14w_8s resmlp_12_224 resnest14d resnetv2_50 rexnet_100 sebotnet33ts_256 selecsls42 sequencer2d_s
    shvit_s1 skresnet18 starnet_s1 swinv2_tiny_window8_256 tf_efficientnet_lite0 tiny_vit_5m_224 tinynet_e
    tnt_s_patch16_224 tresnet_m twins_pcpvt_small twins_svt_small visformer_tiny vit_small_patch14_dinov2
    vit_relpos_small_patch16_224 volo_d1_224 vovnet39a xception41 xcit_nano_12_p16_224
"""

VIT = {
    "image_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
SWIN = {"image_size": 64, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
DPT = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [16, 16, 32, 32],
    "fusion_hidden_size": 32,
}
DISTILLED = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
DETR = {
    "backbone": {"embedding_size": 16, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]},
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_queries": 20,
}

TRANSFORMERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    # family: configuration, network, options that make it small
    "ViT": ("ViTConfig", "ViTModel", VIT),
    "DeiT": ("DeiTConfig", "DeiTModel", VIT),
    "Beit": ("BeitConfig", "BeitModel", VIT),
    "Dinov2": ("Dinov2Config", "Dinov2Model", VIT),
    "CLIPVision": ("CLIPVisionConfig", "CLIPVisionModel", VIT),
    "Siglip": ("SiglipVisionConfig", "SiglipVisionModel", VIT),
    "Swin": ("SwinConfig", "SwinModel", SWIN),
    "Swinv2": ("Swinv2Config", "Swinv2Model", SWIN),
    "Segformer": ("SegformerConfig", "SegformerForSemanticSegmentation", {}),
    "DPT": ("DPTConfig", "DPTForDepthEstimation", {**VIT, **DPT}),
    "MobileViT": ("MobileViTConfig", "MobileViTModel", {}),
    "ConvNext": ("ConvNextConfig", "ConvNextModel", {}),
    "Levit": ("LevitConfig", "LevitForImageClassification", {}),
    "PoolFormer": ("PoolFormerConfig", "PoolFormerModel", {}),
    "Bert": ("BertConfig", "BertModel", VIT),
    "DistilBert": ("DistilBertConfig", "DistilBertModel", DISTILLED),
    "BertBase": ("BertConfig", "BertModel", {}),
    "Detr": ("DetrConfig", "DetrForObjectDetection", DETR),
}


def names() -> list[str]:
    """Every architecture, as library:name."""
    listed = {"torchvision": TORCHVISION.split(), "timm": TIMM.split(), "transformers": TRANSFORMERS}
    return [f"{library}:{name}" for library, found in listed.items() for name in found]


def _torchvision(name: str) -> Any:
    import torchvision

    family, _, short = name.rpartition(".")
    models = getattr(torchvision.models, family) if family else torchvision.models
    options = {"weights_backbone": None} if family else {}
    return getattr(models, short)(weights=None, **options)


def _timm(name: str) -> Any:
    import timm

    return timm.create_model(name, pretrained=False)


def _transformers(name: str) -> Any:
    """A small network of the family: the shape of its blocks is what is tested."""
    import torch
    import transformers

    class First(torch.nn.Module):
        """The network's first output, from pixels or embeddings."""

        def __init__(self, network: Any, argument: str) -> None:
            super().__init__()
            self.network, self.argument = network, argument

        def forward(self, x: torch.Tensor) -> Any:
            return self.network(**{self.argument: x}, return_dict=False)[0]

    configuration, network, given = TRANSFORMERS[name]
    options = dict(given)
    if backbone := options.pop("backbone", None):
        inner = transformers.ResNetConfig(**backbone, out_features=["stage4"])
        options |= {"backbone": None, "use_timm_backbone": False, "backbone_config": inner}
    config = getattr(transformers, configuration)(**options)
    return First(getattr(transformers, network)(config), "inputs_embeds" if "Bert" in name else "pixel_values")


BUILDERS: Mapping[str, Callable[[str], Any]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def _input(module: Any, torch: Any) -> Any:
    """A random input of the smallest size that the network takes."""
    own = (getattr(module, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[-1]
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(1, 3, side, side) for side in (*(s for s in SIZES if s < own), own, 299)]
    if getattr(module, "argument", "") == "inputs_embeds":
        shapes = [(1, 16, module.network.config.hidden_size)]
    for shape in shapes:
        x = torch.randn(shape, generator=generator)
        try:
            with torch.no_grad():
                module(x)
        except Exception:  # whatever a network says about a size that it does not take
            continue
        return x
    raise ValueError(f"no input size among {SIZES} and {own} fits")


def measured(name: str, adapter: str | None) -> Row:
    """The row of one network; `error` says at which step it failed, and why."""
    import torch

    from examples.vision import declare_operators

    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    torch.manual_seed(0)
    library, _, short = name.partition(":")
    row: Row = {"name": name, "versions": _versions("torch", "torchao", library)}
    try:
        step = "build"
        declare_operators()
        module = BUILDERS[library](short).eval()
        x = _input(module, torch)
        row["input"] = list(x.shape)
        step, start = "quantize", time.perf_counter()
        program = q8.quantize(module, (x,), calibration=[x], progress=False)
        row["quantize_s"] = round(time.perf_counter() - start, 1)
        step, start = "compile", time.perf_counter()
        model = q8.compile(program)
        row["compile_s"] = round(time.perf_counter() - start, 1)
        row |= described(model)
        step = "run"
        row |= _compared(model, x.numpy(), adapter)
    except Exception as error:
        row["error"] = f"{step}: {type(error).__name__}: {error}"
    return row


def _versions(*packages: str) -> list[str]:
    installed = {d.name: d.version for d in metadata.distributions()}
    return [f"{package} {installed[package]}" for package in packages if package in installed]


def described(model: q8.Model) -> Row:
    """What a model's graph says: multiply-adds in int8 and in all, float nodes, islands and their reasons."""
    report = model.report()
    return {
        "macs": report.macs[1],
        "macs_int8": report.macs[0],
        "int8": sum(report.int8.values()),
        "float32": report.float32,
        "islands": len(report.islands),
        "exact": report.exact,
        "reasons": {cause: len(notes) for cause, notes in report.reasons.items()},
    }


def _compared(model: q8.Model, x: np.ndarray[Any, Any], adapter: str | None) -> Row:
    """A run on the device beside the reference: elements that differ, and by how much of the largest."""
    start = time.perf_counter()
    with q8.Session(model, adapter) as session:
        row: Row = {"dispatches": len(session.program.dispatches)}
        found = _arrays(session(x))
        assert session.device is not None
        row["device"] = session.device.name
    row["run_s"] = round(time.perf_counter() - start, 1)
    expected = _arrays(q8.Session(model, "reference")(x))
    differ = [np.abs(f.astype(np.float64) - e) for f, e in zip(found, expected, strict=True)]
    row["elements"] = sum(d.size for d in differ)
    row["mismatches"] = int(sum((d > 0).sum() for d in differ))
    row["error_share"] = max(
        float(d.max() / max(np.abs(e).max(), 1e-30)) for d, e in zip(differ, expected, strict=True)
    )
    return row


def _arrays(outputs: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(outputs, np.ndarray):
        return [outputs]
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for part in parts if part is not None for array in _arrays(part)]


def _in_a_process(name: str, adapter: str | None) -> Row:
    command = [sys.executable, "-m", "bench.zoo", name, *(["--device", adapter] if adapter else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"took more than {LIMIT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"name": name, "error": f"the process ended with {done.returncode}: {done.stderr[-300:]}"}
    row: Row = json.loads(lines[-1])
    return row


def read(path: Path) -> list[Row]:
    """The rows of a results file; the last one of a network on a device counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {(row["name"], row.get("device", "")): row for row in map(json.loads, lines)}
    ran = {name for name, device in rows if device}
    return [row for (name, device), row in rows.items() if device or name not in ran]


def part_zoo(options: Options) -> None:
    """Runs the networks that have no row yet, or those named, `jobs` at a time, and writes the table."""
    RESULTS.parent.mkdir(exist_ok=True)
    done = {row["name"] for row in read(RESULTS)}
    wanted = list(options.names) or [name for name in names() if name not in done]

    def one(name: str) -> Row:
        start = time.perf_counter()
        row = _in_a_process(name, options.adapter)
        return row | {"seconds": round(time.perf_counter() - start, 1)}

    with ThreadPoolExecutor(options.jobs) as pool, RESULTS.open("a") as file:
        running = [pool.submit(one, name) for name in wanted]
        for _, future in zip(through(wanted, "zoo"), running, strict=True):
            row = future.result()
            print(json.dumps(row), file=file, flush=True)
            print(_line(row), flush=True)
    rows = read(RESULTS)
    print(summary(rows))
    TABLE.write_text(table(rows))


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['name']}: {row['error'].splitlines()[0]} ({row['seconds']} s)"
    return (
        f"{row['name']}: {_share(row)} of the multiply-adds in int8, {row['mismatches']} mismatches, {row['seconds']} s"
    )


def _share(row: Row) -> str:
    return f"{100 * row['macs_int8'] / max(row['macs'], 1):.1f} %"


def summary(rows: list[Row]) -> str:
    """How many run, how many without a mismatch, and how much of their work is int8."""
    ran = [row for row in rows if "error" not in row]
    equal = [row for row in ran if not row["mismatches"]]
    share = sum(r["macs_int8"] for r in ran) / max(sum(r["macs"] for r in ran), 1)
    return (
        f"{len(ran)} of {len(rows)} architectures that were tried compile and run, {len(equal)} with 0 mismatches; "
        f"{100 * share:.1f} % of their multiply-adds are int8."
    )


def table(rows: list[Row]) -> str:
    """docs/zoo.md: all networks on the device that ran most of them, and those that ran on others as well."""
    devices = [device for device, _ in Counter(row.get("device", "") for row in rows).most_common() if device]
    on = {device: rank for rank, device in enumerate(devices)}
    first: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: on.get(row.get("device", ""), len(on))):
        first.setdefault(_name(row), row)
    used = [device for device in devices if any(row.get("device") == device for row in first.values())]
    versions = sorted({version for row in first.values() for version in row["versions"]})
    lines = [
        "# Zoo",
        "",
        "Architectures of torchvision, timm and transformers (small ones of each family there) with random weights and",
        "small inputs: quantized with one batch, compiled, run and compared with the numpy reference, each in its own",
        "process. Written by `python -m bench zoo`, with",
        f"{', '.join(versions)}, on",
        f"{', '.join(used)}.",
        "",
        summary(list(first.values())),
        "",
        "Mismatches are elements of the outputs that differ from the reference in any bit; behind float32 operators,",
        "which have a tolerance, the largest difference is given as a share of the largest output. Seconds are wall",
        "time on a machine that did other work as well.",
        "",
        "| architecture | input | int8 macs | float32 operators | islands | dispatches | mismatches | quantize s |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(row) for _, row in sorted(first.items())),
    ]
    lines += _others(rows, devices)
    reasons = Counter(reason for row in first.values() for reason in row.get("reasons", {}))
    lines += ["", "## Why operators stay in float32", "", "| reason | networks |", "|---|---|"]
    lines += [f"| {_escaped(reason)} | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def _name(row: Row) -> str:
    return str(row["name"]).replace(":", " ")


def _row(row: Row) -> str:
    if "error" in row:
        return f"| {_name(row)} | | | {_escaped(row['error'])} | | | | |"
    floats = ", ".join(f"{op} {count}" for op, count in sorted(row["float32"].items())) or "none"
    shape = "x".join(map(str, row["input"]))
    return (
        f"| {_name(row)} | {shape} | {_share(row)} | {floats} | {row['islands']} | {row['dispatches']} "
        f"| {_differing(row)} | {row['quantize_s']} |"
    )


def _differing(row: Row) -> str:
    apart = f" of {row['elements']} (by {row['error_share']:.1e})" if row["mismatches"] else ""
    return f"{row['mismatches']}{apart}"


def _others(rows: list[Row], devices: list[str]) -> list[str]:
    """Mismatches of the networks that ran on several devices, a column each."""
    ran = {(_name(row), row["device"]): row for row in rows if "device" in row}
    times = Counter(name for name, _ in ran)
    several = sorted(name for name, count in times.items() if count > 1)
    if not several:
        return []
    cells = ([_differing(ran[name, d]) if (name, d) in ran else "" for d in devices] for name in several)
    return [
        "",
        "## Mismatches on several devices",
        "",
        f"| architecture | {' | '.join(devices)} |",
        "|---|" + "---|" * len(devices),
        *(f"| {name} | {' | '.join(found)} |" for name, found in zip(several, cells, strict=True)),
    ]


def _escaped(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--device")
    given = parser.parse_args()
    print(json.dumps(measured(given.name, given.device)))
