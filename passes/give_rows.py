"""Lets results that are given as uint8 come back in the order of their rows, in which the host takes them as they
lie: images in blocks of channels take it longer than a device takes for a network (`as_given` in
layout_sync/options.py)."""

from __future__ import annotations

from dataclasses import replace

from q8ta_wgpu.ir.graph import UINT8, Graph, Node
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.view import LEFT
from q8ta_wgpu.passes.rewriter import Rewriter


def give_rows(graph: Graph, target: Target) -> None:
    """Puts a view before each such result, which layouts make free where what it reads is written in rows. What else
    reads the result reads what the view reads."""
    rewriter = Rewriter(graph)
    for name in dict.fromkeys(graph.outputs):
        made, t = rewriter.producer(name), graph.types[name]
        if made is None or t.q != UINT8 or made.op in ("view", "permute"):
            continue
        stored = rewriter.insert(made, made.op, made.inputs, made.attrs, t, f"{name}.stored")
        for reader in rewriter.readers(name):
            inputs = tuple(stored if read == name else read for read in reader.inputs)
            rewriter.replace(reader, replace(reader, inputs=inputs))
        rewriter.replace(made, Node("view", (stored,), name, {"shape": [LEFT] * len(t.shape)}, made.source))
    rewriter.commit()
