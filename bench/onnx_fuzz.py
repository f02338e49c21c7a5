"""Fuzzes ONNX files: `python -m bench onnx-fuzz --count 2000`, as `testbed/onnx/fuzzing.py` says.

Inputs are the small files that `onnx-files` has fetched, damaged by `testbed/onnx/mutations.py`.
"""

from __future__ import annotations

from bench.faults import Tried, record
from bench.options import Options
from bench.packaged_files import FILES
from bench.packages import fetched
from testbed.onnx.fuzzing import fuzzed

LARGEST = 3 << 20
"""Larger files are left out: most of the time would go into their constants."""


def part_onnx_fuzz(options: Options) -> None:
    """Fuzzes `--count` files."""
    chosen = [(fetched(file), file) for file in FILES]
    chosen = [(path, file) for path, file in chosen if path.stat().st_size < LARGEST and file.package != "khmersm"]
    files, sizes = [path.read_bytes() for path, _ in chosen], [(file.sizes, file.constants) for _, file in chosen]
    outcomes = fuzzed(files, sizes, range(options.count))
    happened = "; ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
    record([Tried("an ONNX file is mutated", "host", options.count, happened)])
