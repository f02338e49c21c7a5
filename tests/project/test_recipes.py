"""The recipes of CONTRIBUTING.md, done as written in a copy of the tree: what they promise is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```(?:python|wgsl)\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M | re.S)

PROMISED = """
import numpy as np, torch
from torch import nn
import q8ta_wgpu as q8
from q8ta_wgpu.ir.layout import Layout, pack, unpack
from q8ta_wgpu.kernels import OPS

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
    def forward(self, x):
        y = nn.functional.logsigmoid(self.conv(x))
        return y.permute(0, 2, 3, 1).permute(0, 3, 1, 2).permute(0, 2, 1, 3)

net, xs = Net().eval(), [torch.randn(1, 3, 12, 12) for _ in range(8)]
model = q8.compile(q8.quantize(net, (xs[0],), calibration=xs, quantizer=q8.Quantizer(precision="int8"), progress=False))
assert not model.report().float32, model.report()
assert sum(node.op == "permute" for node in model.graph.nodes) <= 1, [node.op for node in model.graph.nodes]
found = q8.Session(model, "vulkan")(xs[0])
assert np.array_equal(found, q8.Session(model, "reference")(xs[0]))
with torch.no_grad():
    assert np.abs(found - net(xs[0]).numpy()).max() < 0.1

kernels = {kernel.name for op in OPS.values() for kernel in op.kernels}
assert {"q8ta_conv2d.pw_32x64", "q8ta_conv2d.implicit_32x64", "q8ta_linear.tiled_32x64"} <= kernels

layout = Layout.PACKED_INT8_4W1C
x = np.arange(2 * 3 * 5 * 7, dtype=np.int8).reshape(2, 3, 5, 7)
words = pack(x, layout)
assert np.array_equal(unpack(words, x.shape, layout), x)
assert words.view(np.int8)[4 * (((1 * 5 + 4) * 3 + 2) * 2 + 6 // 4) + 6 % 4] == x[1, 2, 4, 6]
from q8ta_wgpu.__main__ import main
for kernel in ("log_sigmoid", "q8ta_conv2d.pw_32x64", "q8ta_clone"):
    assert main(["wgsl", kernel]) == 0
print("all there")
"""


def changed(path: Path, old: str, new: str) -> None:
    """Replaces the first occurrence of a text in a file, which must have it."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recipes_give_what_they_promise(tmp_path: Path) -> None:
    for name in ("q8ta_wgpu", "kernels", "passes"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    row, function, _, softsign, tile, merge, packing = BLOCKS
    changed(tmp_path / "kernels/elementwise/functions.py", '    Row("tanh"', f'    {row}    Row("tanh"')
    wgsl = tmp_path / "kernels/elementwise/unary.wgsl"
    wgsl.write_text(wgsl.read_text("utf-8") + function, encoding="utf-8")
    assert softsign.strip() in (tmp_path / "passes/plan/spellings.py").read_text("utf-8")
    changed(tmp_path / "kernels/product/gemm.py", '    "64x64": Tile', f'    {tile}    "64x64": Tile')
    imports = "from dataclasses import replace\nfrom q8ta_wgpu.ir.graph import Graph\n"
    imports += "from q8ta_wgpu.passes.rewriter import Rewriter\n\n\n"
    (tmp_path / "passes/merge_permutes.py").write_text(imports + merge, encoding="utf-8")
    passes = tmp_path / "passes/__init__.py"
    changed(passes, "Pass = Callable", "from q8ta_wgpu.passes.merge_permutes import merge_permutes\n\nPass = Callable")
    changed(passes, "    # Last, to drop", "    merge_permutes,\n    # Last, to drop")
    layouts, member = tmp_path / "q8ta_wgpu/ir/layout.py", "Layout.PACKED_INT8_4W1C"
    changed(layouts, "    DEFAULT = 255", "    PACKED_INT8_4W1C = 10\n    DEFAULT = 255")
    changed(layouts, "    Layout.PACKED_INT8_4H4W,\n)", f"    Layout.PACKED_INT8_4H4W,\n    {member},\n)")
    changed(layouts, "frozenset({Layout.PACKED_INT8_4W,", f"frozenset({{{member}, Layout.PACKED_INT8_4W,")
    changed(layouts, "    Layout.PACKED_INT8_4H4W: Packing", f"    {packing}    Layout.PACKED_INT8_4H4W: Packing")
    order = tmp_path / "passes/layout_sync/tensor_repr.py"
    changed(order, "    Layout.PACKED_INT8_4W,\n", f"    Layout.PACKED_INT8_4W,\n    {member},\n")

    out = run(tmp_path, "-c", PROMISED)
    assert out.endswith("all there\n") and out.count("@compute") >= 3
