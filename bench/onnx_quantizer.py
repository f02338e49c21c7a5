"""ONNX Runtime beside this library: its sessions, and its static quantizer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from q8ta_wgpu.ir.graph import Array


def opened(source: Path | str, exact: bool = False) -> Any:
    """A session of ONNX Runtime on one thread. `exact`: without its graph optimization, whose kernels for int8 do not
    compute exact sums on every processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if exact:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def quantized(path: Path, given: Sequence[Mapping[str, Array]], target: str) -> bool:
    """Writes what its static quantizer makes of a float file, with scales by channel, to a path. Says whether anything
    of it is quantized. Raises exceptions of many kinds: operators, shapes that it does not infer."""
    from onnxruntime import quantization as made

    class Reader(made.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(given)

        def get_next(self) -> Mapping[str, Array] | None:
            return next(self.left, None)

    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            made.quantize_static(_prepared(path, Path(folder)), target, Reader(), per_channel=True)
    finally:
        logging.disable(logging.NOTSET)
    return any(node.op_type == "QuantizeLinear" for node in onnx.load(target).graph.node)


def _prepared(path: Path, folder: Path) -> str:
    """A file as ONNX Runtime's quantizer asks for it: of opset 13 or newer, with shapes."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, newer, source = onnx.load(str(path)), folder / "newer.onnx", str(path)
    if model.opset_import[0].version < 13:
        onnx.save(onnx.version_converter.convert_version(model, 13), str(newer))
        source = str(newer)
    try:
        quant_pre_process(source, str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    except Exception:  # its own shape inference fails on some files
        return source
    return str(folder / "prepared.onnx")
