"""Saved models on an adapter against the numpy reference: `python -m bench.check_models FOLDER [--device NAME]`.

Needs numpy, wgpu and safetensors. Prints, per .q8ta file, how many output values differ in any bit, and exits with 1 if
any does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model import reference


def differing(model: q8.Model, device: str | None, seed: int) -> tuple[str, int, int]:
    """(adapter, values that differ, values compared) for one random input."""
    generator = np.random.default_rng(seed)
    inputs = {name: generator.normal(size=t.shape).astype(np.float32) for name, t in model.inputs.items()}
    with q8.Session(model, device) as session:
        outputs = session(**inputs)
        name = session.name
    expected = reference.run(model.graph, inputs)
    wanted = model.structure.unflatten([expected[output] for output in model.graph.outputs])
    pairs = list(zip(_flat(outputs), _flat(wanted), strict=True))
    count = sum(int((f.view(np.uint32) != e.view(np.uint32)).sum()) for f, e in pairs)
    return name, count, sum(e.size for _, e in pairs)


def _flat(outputs: object) -> list[Array]:
    if isinstance(outputs, np.ndarray):
        return [outputs]
    assert isinstance(outputs, (tuple, list, dict))
    items = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for item in items for array in _flat(item)]


def main() -> None:
    """Checks every model of a folder on two inputs each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", help="part of an adapter's name")
    options = parser.parse_args()
    total = 0
    for path in sorted(options.folder.glob("*.q8ta")):
        model = q8.load(path)
        for seed in (1, 2):
            name, count, size = differing(model, options.device, seed)
            exact = model.report().exact
            total += count if exact else 0
            note = "" if exact else " (float32 operators, each with a tolerance)"
            print(f"{path.stem:<16} seed {seed}: {count} of {size} values differ on {name}{note}")
    sys.exit(bool(total))


if __name__ == "__main__":
    main()
