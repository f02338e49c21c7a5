"""Measured times as JSON, and as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from q8ta_wgpu.session.timing import Timing


def as_json(timing: Timing) -> str:
    """Everything measured: the device, its rates, and each dispatch with its microseconds, bytes and work."""
    return json.dumps(
        {
            "device": timing.device,
            "repeats": len(timing.runs),
            "run_ms": timing.run_ms,
            "one_by_one_ms": timing.total_ms,
            "dot_gops": timing.dot_rate,
            "matrix_unit_gops": timing.unit_rate,
            "copy_gbs": timing.copy_rate,
            "dispatches": _dispatches(timing),
        },
        indent=1,
    )


def as_trace(timing: Timing) -> str:
    """The median of each dispatch in Chrome's trace event format, one after the other.

    They were timed like that, each in a compute pass of its own. In a run the device may overlap them.
    """
    named = {"ph": "M", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {**named, "name": "process_name", "args": {"name": timing.device}},
        {**named, "name": "thread_name", "args": {"name": "dispatches, one by one, medians"}},
    ]
    at = 0.0
    for facts in _dispatches(timing):
        span = {"name": facts["kernel"], "cat": facts["kernel"].partition(".")[0], "ts": at, "dur": facts["us"]}
        events.append({"ph": "X", "pid": 1, "tid": 1, **span, "args": facts})
        at += facts["us"]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def _dispatches(timing: Timing) -> list[dict[str, Any]]:
    medians, fastest = timing.medians, timing.samples.min(axis=0)
    return [
        {
            "kernel": d.kernel,
            "value": d.value,
            "stages": d.stages,
            "source": d.source,
            "layouts": list(d.layouts),
            "workgroups": list(d.grid),
            "us": float(us),
            "least_us": float(least),
            "bytes": int(d.moved),
            "multiply_accumulates": int(d.macs),
            "on_matrix_units": timing.program.on_matrix_units(d),
        }
        for d, us, least in zip(timing.program.dispatches, medians, fastest, strict=True)
    ]
