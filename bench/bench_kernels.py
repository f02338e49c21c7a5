"""Times every kernel on the test cases of its operator: recording, running, reading back.

`python -m pytest bench/bench_kernels.py` runs on the best adapter. The sizes are small, so this shows regressions of
the cost of a dispatch. `python -m bench` times kernels at realistic sizes.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed import harness, op_graphs

INT8 = [op for op in OPS.values() if op.cases and op.kernels and op.int8]


@pytest.mark.parametrize("op", [op for op in INT8 if not op.name.startswith("q8ta_")], ids=lambda op: op.name)
def test_kernel(benchmark: BenchmarkFixture, op: Op, vulkan: Device) -> None:
    graph, inputs = op_graphs.int8_graph(op, op.cases[0], op_graphs.SETTINGS[0])
    program = harness.program_of(graph, vulkan.target)
    words = [harness.words_of(inputs[port.name], port) for port in program.inputs]
    executor = Executor(program, vulkan)
    benchmark.extra_info["kernels"] = [d.kernel for d in program.dispatches]
    try:
        benchmark(executor.run, words)
    finally:
        executor.close()
