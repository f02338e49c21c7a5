"""Computes values of a float ONNX file by ONNX Runtime if that is installed, many times faster than the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.onnx_import.from_onnx import File


class Computed:
    """Computes values of a file. Calls return an empty dict if ONNX Runtime is missing or cannot run the file.

    Args:
        file: its path or bytes, which have been read without an error before.
        names: the values to compute: the graph's names, with their names in the file.
        constants: arrays in place of some of the file's inputs.

    Attributes:
        runner: what computed the values of the last call, in words: ONNX Runtime with its version, or the reference.
    """

    def __init__(self, file: File, names: Mapping[str, str], constants: Mapping[str, Array]) -> None:
        self.names, self._constants = names, constants
        self.runner, self._version = _REFERENCE, ""
        self._session = self._opened(file) if names else None

    def _opened(self, file: File) -> Any:
        try:
            import onnxruntime
        except ImportError:
            return None
        import onnx

        self._version = onnxruntime.__version__
        data = bytes(file) if isinstance(file, (bytes, bytearray)) else Path(file).read_bytes()
        model = onnx.ModelProto.FromString(data)
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
            return None
        ports = {port.name for port in (*model.graph.output, *model.graph.input)}
        for name in dict.fromkeys(self.names.values()):
            if name not in ports:
                model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # classes of its own: operators, versions or sizes that it does not support
            return None

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The values by the graph's names, for arrays of the inputs as the graph stores them."""
        self.runner = _REFERENCE
        if self._session is None:
            return {}
        kinds = {port.name: _DTYPES.get(port.type) for port in self._session.get_inputs()}
        given = {**inputs, **self._constants}
        if set(kinds) != set(given) or None in kinds.values():
            return {}
        names = list(self.names)
        try:
            found = self._session.run(
                [self.names[name] for name in names], {n: x.astype(kinds[n]) for n, x in given.items()}
            )
        except Exception:  # as above
            return {}
        self.runner = f"ONNX Runtime {self._version}"
        return {name: np.asarray(x) for name, x in zip(names, found, strict=True)}


_REFERENCE = "the reference"


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
"""Dtypes of inputs that the graph stores as the same numbers."""
