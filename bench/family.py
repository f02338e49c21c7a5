"""Fits the speeds of tiles on an adapter to measured times, for a file in `kernels/product/families/`.

Products of many sizes are timed with every tile, with and without an int8 residual. The five numbers of a tile's
`Speed` are those that minimize the mean squared logarithm of expected over measured time.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.options import Options
from bench.products import tiled, timed
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.kernels.product.gemm import TILES, bytes_along
from q8ta_wgpu.kernels.product.speeds import Speed
from q8ta_wgpu.kernels.product.units import UNIT_TILES
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import conv

ROWS = (49, 196, 784, 3136, 12544, 100352)
CHANNELS = (64, 256, 1024)
DEPTHS = (64, 256, 576, 2304)
"""Rows, channels and k of the timed products: those of ResNet-50's layers at batch 1 and 32."""

LARGEST = 40e9
"""Limit of multiply-accumulates of a timed product."""

Point = tuple[int, float, bool, float]
"""(workgroups, million operations of each, whether there is a residual, measured microseconds)."""


def points(device: Device, sizes: Sequence[tuple[int, int, int]]) -> dict[str, list[Point]]:
    """Measurements of each tile for products of these (rows, channels, k)."""
    found: dict[str, list[Point]] = {}
    for (rows, channels, depth), residual in itertools.product(sizes, (False, True)):
        graph = conv((1, depth, rows, 1), channels, 1, residual=residual)
        for kernel, us in timed(device, graph, tiled(graph, device)).items():
            label = kernel.name.partition(".")[2].removeprefix("pw_")
            if (tile := TILES.get(label)) is not None:
                work = 2e-6 * tile.m * tile.n * bytes_along(tile, -(-depth // 16))
                found.setdefault(label, []).append((tile.groups(rows, channels), work, residual, us))
    return found


def fitted(measured: Sequence[Point]) -> tuple[Speed, float]:
    """The speed that fits the measurements best, and the root mean square factor of its errors."""
    plain = [p for p in measured if not p[2]]
    best = max(groups * work / us for groups, work, _, us in measured)
    least = min(us for *_, us in measured)
    starts = ((at_once, best, best / at_once, least / 2) for at_once in (32, 132, 264, 528, 1056))
    log, error = min((_descended(np.log(start), plain) for start in starts), key=lambda found: found[1])
    at_once, together, alone, rest = np.exp(log)
    speed = Speed(round(at_once), _digits(together), _digits(alone), _digits(rest), 0.0)
    extra = [us - speed.microseconds(groups, work, False) for groups, work, added, us in measured if added]
    residual = _digits(max(float(np.median(extra)), 0.0)) if extra else 0.0
    return Speed(speed.at_once, speed.together, speed.alone, speed.rest, residual), float(np.exp(error**0.5))


def _descended(log: NDArray[np.float64], measured: Sequence[Point]) -> tuple[NDArray[np.float64], float]:
    """Coordinate descent from the logarithms of (at_once, together, alone, rest); returns these and the mean squared
    error."""
    error, step = _error(log, measured), 0.5
    while step > 0.005:
        before = error
        for index, sign in itertools.product(range(len(log)), (1, -1)):
            other = log.copy()
            other[index] += sign * step
            if (found := _error(other, measured)) < error:
                log, error = other, found
        step = step if error < before else step / 2
    return log, error


def _error(log: NDArray[np.float64], measured: Sequence[Point]) -> float:
    at_once, together, alone, rest = np.exp(log)
    speed = Speed(max(round(at_once), 1), together, alone, rest, 0.0)
    ratios = [speed.microseconds(groups, work, False) / us for groups, work, _, us in measured]
    return float(np.mean(np.log(ratios) ** 2))


def _digits(number: float) -> float:
    """A number rounded to three significant digits."""
    return float(f"{number:.3g}")


def sizes(largest: float = LARGEST) -> Iterator[tuple[int, int, int]]:
    """(rows, channels, k) of the timed products."""
    return (each for each in itertools.product(ROWS, CHANNELS, DEPTHS) if float(np.prod(each)) <= largest)


def write(adapter: str, speeds: Mapping[str, Speed], path: Path) -> None:
    """Writes a family's file, with a line for each tile."""
    rows = (
        f'  "{label}": {json.dumps([s.at_once, s.together, s.alone, s.rest, s.residual])}'
        for label, s in speeds.items()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{\n "adapter": {json.dumps(adapter)},\n "tiles": {{\n' + ",\n".join(rows) + "\n }\n}\n")


def part_family(options: Options) -> None:
    """Writes the speeds of tiles on this adapter to out/ADAPTER.json; `--names` are products as ROWSxCHANNELSxK.

    Raises InputError for an adapter without int8 matrix units."""
    device = options.device
    if not any(tile.fits(device.target) for tile in UNIT_TILES.values()):
        raise InputError(f"{device.name} has no int8 matrix units: no rule reads the speeds of its tiles")
    asked = [tuple(map(int, name.split("x"))) for name in options.names] or list(sizes())
    speeds = {}
    for label, measured in points(device, [(m, n, k) for m, n, k in asked]).items():
        speeds[label], factor = fitted(measured)
        print(f"{label:<20} {speeds[label]}, off by a factor of {factor:.2f}", flush=True)
    adapter = device.info["device"]
    path = Path("out") / f"{'_'.join(adapter.lower().split())}.json"
    write(adapter, speeds, path)
    print(f"{path}: shorten its adapter to what the names of the family share, and add it to kernels/product/families/")
