"""torch's PT2E simulation, operator by operator: each quantize node is computed from our int8 values and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.ir.graph import INT8X4, Array
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Curve, Residual
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import PASSES, run_passes
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues
from tests import oracle

TIE = 2.0**-10
"""Results nearer than this to a rounding tie, in steps, are decided by torch's own float noise and not counted."""


@dataclass(frozen=True)
class Comparison:
    """One operator against the simulation: largest difference in steps, and the share equal away from ties, NaN where
    all are near one: then nothing was compared."""

    value: str
    op: str
    largest: int
    equal: float

    @property
    def holds(self) -> bool:
        """Whether the operator is the simulation, rounded: a step apart at most, and that only near ties. Attention,
        which the simulation computes in float32, has weights of eight bits: the context of a few keys may be three
        steps off (tests/kernels/test_attention_accuracy.py says how near it is to exact arithmetic)."""
        if self.op == "q8ta_attention":
            return self.largest <= 3
        return self.largest <= 1 and not self.equal < 0.999


def compare(program: ExportedProgram, model: Model, inputs: Mapping[str, Array]) -> list[Comparison]:
    """Every int8 value of our graph that is a quantize node of the program, computed by both from our own operands.

    What a weighted sum and its successor do in one dispatch is compared one by one, and must give the same bytes.
    """
    graph = run_passes(import_program(program)[0], [step for step in PASSES if step is not fold_epilogues])
    stored = {name: graph.stored(name, array) for name, array in inputs.items()}
    ours = reference.run(graph, stored, keep=True)
    fused = reference.run(model.graph, stored)
    for name, folded in zip(graph.outputs, model.graph.outputs, strict=True):
        np.testing.assert_array_equal(fused[folded], ours[name])
    model = replace(model, graph=graph)
    nodes = {node.output: node for node in graph.nodes}
    replay = _Replay(program.run_decompositions({}), model, ours)
    replay.start([torch.from_numpy(inputs[name]) for name in model.graph.inputs])
    found = []
    for name, (simulated, exact) in replay.seen.items():
        mine = ours[name].astype(np.int64)
        joined = "epilogue" in nodes[name].attrs and isinstance(
            nodes[name].attrs["epilogue"].stages[0], Curve | Residual
        )
        clear = np.abs(exact - np.floor(exact) - 0.5) > (oracle.JOINED if joined else TIE)
        same = (mine == simulated)[clear]
        share = float(same.mean()) if clear.any() else float("nan")
        found.append(Comparison(name, nodes[name].op, int(np.abs(mine - simulated).max()), share))
    return found


class _Replay(torch.fx.Interpreter):
    """Runs the program, putting our int8 value in the place of each quantize's own result."""

    def __init__(self, program: ExportedProgram, model: Model, ours: Mapping[str, Array]) -> None:
        super().__init__(program.graph_module)
        self.program = program
        self.types = model.graph.types
        self.ours = ours
        self.seen: dict[str, tuple[Array, Array]] = {}
        self.rows = any(str(n.target).startswith("q8ta_wgpu.round_rows") for n in program.graph.nodes)

    def start(self, inputs: list[torch.Tensor]) -> None:
        """Feeds parameters, buffers and constants to their placeholders, then the inputs."""
        given = iter(inputs)
        arguments = []
        for spec in self.program.graph_signature.input_specs:
            if spec.target is None:
                arguments.append(next(given))
            else:
                stored = self.program.state_dict.get(spec.target)
                arguments.append(self.program.constants[spec.target] if stored is None else stored)
        with torch.no_grad():
            self.run(*arguments)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Records and replaces quantize results that our graph holds too."""
        result = super().run_node(n)
        if not str(n.target).startswith("quantized_decomposed.quantize_per_tensor") or n.name not in self.ours:
            return result
        narrow = self.types[n.name].dtype == INT8X4
        if not narrow and not self.rows:
            return result
        mine = torch.from_numpy(self.ours[n.name].astype(np.int64))
        if not narrow:  # a row is rounded by the largest of these, as its scale jumps with it
            return mine.to(result.dtype).reshape(result.shape)
        args: list[Any] = [self.env[a] if isinstance(a, torch.fx.Node) else a for a in n.args]
        x, scale, zero = args[0], float(args[1]), int(args[2])
        shift = 128 if result.dtype == torch.uint8 else 0
        exact = x.numpy().astype(np.float64) / scale + zero - shift
        self.seen[n.name] = result.numpy().astype(np.int64) - shift, exact
        mine += shift
        return mine.to(result.dtype).reshape(result.shape)
