"""What packages use of ONNX Runtime, on any GPU: `import q8ta_wgpu.onnxruntime as ort`.

A quantized file runs as it is, a float one in float32, or in int8 with `calibration=`. For a package that imports
ONNX Runtime itself, call `q8ta_wgpu.onnxruntime.install()` before it is imported.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from q8ta_wgpu.errors import InputError, Q8taError, UnsupportedError, check_items, counted, shown
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.from_onnx import File, from_onnx, local
from q8ta_wgpu.onnx_import.quantize_onnx import quantize
from q8ta_wgpu.session.by_shape import ByShape
from q8ta_wgpu.session.inputs import arguments, as_array
from q8ta_wgpu.session.session import Session

try:
    from q8ta_wgpu.onnx_import.ports import ModelMetadata, NodeArg, described
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error

Key = tuple[Any, ...]

__version__ = "1.20.0"
"""The version of ONNX Runtime whose calls these are."""

PROVIDER = "Q8taExecutionProvider"

# What packages catch.
Fail = EPFail = RuntimeException = Q8taError
InvalidArgument = NoSuchFile = InputError
InvalidGraph = InvalidProtobuf = NotImplemented = UnsupportedError

_default: dict[str, Any] = {"device": None}


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels. Networks are always optimized here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """ONNX Runtime's modes. A device runs one dispatch after the other here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions(types.SimpleNamespace):
    """Options that packages set. They have no meaning here and are kept as they are set."""

    def __init__(self) -> None:
        super().__init__(entries={})

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry."""
        self.entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added. Raises InputError if there is none."""
        if key not in self.entries:
            raise InputError(f"there is no entry {shown(key)}; add_session_config_entry adds one")
        return str(self.entries[key])

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Does nothing: open sizes are those of the arrays that arrive."""

    def register_custom_ops_library(self, path: str) -> None:
        """Raises UnsupportedError: a library of operators for a processor cannot run on a GPU."""
        raise UnsupportedError(f"{shown(path)} holds operators for ONNX Runtime's processor provider")


class RunOptions(types.SimpleNamespace):
    """Options of a run. They have no meaning here and are kept as they are set."""


class InferenceSession:
    """An ONNX file on a device.

    A file that leaves sizes open is made for those of the arrays that arrive; the last eight of these models are kept.
    Where integers of one element decide what the file computes, as a sampling rate does, a model is made for each of
    their values.

    Args:
        path_or_bytes: the path of an .onnx file, or its bytes.
        sess_options, providers, provider_options: have no meaning here: `device` says where the file runs.
        calibration: representative inputs of a float file, which then runs in int8: feeds as `run` takes them, arrays,
            or tuples of arrays. The first one says which sizes the file has.
        device: as for `Session`; None takes the one of `set_default_device`, else the best adapter.

    Raises:
        InputError: there is no such file, or the calibration does not fit it.
        UnsupportedError: it is no ONNX file, or holds what cannot be imported. Of a file that leaves sizes open, or has
            inputs that may decide what it computes, the first run raises it.
        DeviceError: no adapter fits.
    """

    def __init__(
        self,
        path_or_bytes: File,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        calibration: Iterable[Any] | None = None,
        device: Any = None,
    ) -> None:
        self._file = local(path_or_bytes)
        inputs, self._outputs, self._metadata = described(self._file)
        self._options = sess_options or SessionOptions()
        self._device = _default["device"] if device is None else device
        self._inputs = {port.name: port for port in inputs}
        self._lock = threading.Lock()
        self._decides: list[str] | None = None  # inputs whose values models are made for, once that is known
        self._first: dict[Key, Model] = {}
        self._sessions = ByShape[Key, Session]()
        self._items: list[dict[str, Array]] | None = None
        if calibration is not None:
            self._items = [self._feeds(*arguments(item)) for item in check_items(calibration)]
        if self._items == []:
            raise InputError("the calibration is empty: give an iterable of representative inputs")
        feeds = self._items[0] if self._items else {}
        if self._items or not (self._scalars() or any(map(self._open, self._inputs))):
            with self._sessions.using(self._key_of(feeds), lambda key: self._opened(key, feeds)):
                pass  # kept

    # --- what the file says ---

    def get_inputs(self) -> list[NodeArg]:
        """The inputs: name, type and shape."""
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        """The outputs: name, type and shape."""
        return list(self._outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """Texts that the file holds."""
        return self._metadata

    def get_providers(self) -> list[str]:
        """The provider that runs the file."""
        return [PROVIDER]

    def get_session_options(self) -> SessionOptions:
        """The options."""
        return self._options

    # --- runs ---

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Array]:
        """Runs the file.

        Args:
            output_names: outputs to return; None or an empty list for all.
            input_feed: an array for each input, by name.
            run_options: ignored.

        Returns:
            An array for each output.

        Raises:
            InputError: an input is missing or does not fit, or there is no such output.
            UnsupportedError: the file cannot be imported at the sizes of these arrays.
            DeviceError: the device fails.
        """
        names = [port.name for port in self._outputs]
        if isinstance(output_names, str) or not isinstance(output_names, Sequence | None):
            raise InputError(f"output_names is a list of outputs' names or None, found {shown(output_names)}")
        for name in (wanted := list(output_names or names)):
            if name not in names:
                raise InputError(
                    f"the file has no output {shown(name)}; its outputs are {', '.join(map(shown, names))}"
                )
        feeds = self._feeds((), input_feed)
        key = self._key_of(feeds)
        with self._sessions.using(key, lambda key: self._opened(key, feeds)) as session:
            found = session({name: array for name, array in feeds.items() if name in session.model.inputs})
        results = found if isinstance(found, dict) else {names[0]: found}
        return [np.asarray(results[name]) for name in wanted]

    def _feeds(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Array]:
        """An array for each input of the file."""
        if not isinstance(named, Mapping):
            raise InputError(f"input_feed is a dict of arrays by the names of inputs, found {type(named).__name__}")
        if len(args) > len(self._inputs):
            raise InputError(f"the file takes {counted(len(self._inputs), 'input')}, found {len(args)}")
        given = {**dict(zip(self._inputs, args, strict=False)), **named}
        if missing := [name for name in self._inputs if name not in given]:
            raise InputError(f"inputs are missing: {', '.join(map(shown, missing))}")
        if unknown := [name for name in given if name not in self._inputs]:
            there = ", ".join(map(shown, self._inputs))
            raise InputError(f"the file has no input {shown(unknown[0])}; its inputs are {there}")
        found = {name: as_array(name, given[name]) for name in self._inputs}
        for name, array in found.items():
            self._check_shape(name, array)
        return found

    def _check_shape(self, name: str, array: Array) -> None:
        """Raises InputError for an array whose sizes are neither open nor those of the file, or of its calibration. One
        number may have any rank."""
        shape = list(self._items[0][name].shape) if self._items else self._inputs[name].shape
        pairs = zip(shape, array.shape, strict=False)
        if array.size == 1 or (len(shape) == array.ndim and all(n == m for n, m in pairs if isinstance(n, int))):
            return
        says = "as the calibration has it" if self._items else "as the file says"
        raise InputError(f"input {shown(name)} must have the shape {shape}, {says}, found {list(array.shape)}")

    def _scalars(self) -> list[str]:
        """Inputs of one integer, which may decide what the file computes."""
        single = (port for port in self._inputs.values() if all(size == 1 for size in port.shape))
        return [port.name for port in single if "int" in port.type or "bool" in port.type]

    def _open(self, name: str) -> list[int]:
        """The dimensions of an input that the file leaves open."""
        return [i for i, size in enumerate(self._inputs[name].shape) if not isinstance(size, int)]

    def _key_of(self, feeds: Mapping[str, Array]) -> Key:
        """Open sizes, by these arrays, and the numbers that decide. A file that was calibrated has its items' sizes."""
        with self._lock:
            if self._decides is None:
                self._decide(feeds)
            return self._key(feeds)

    def _key(self, feeds: Mapping[str, Array]) -> Key:
        shapes = () if self._items else tuple(array.shape for name, array in feeds.items() if self._open(name))
        return (*shapes, *(feeds[name].tobytes() for name in self._decides or () if name in feeds))

    def _decide(self, feeds: Mapping[str, Array]) -> None:
        """Makes the first model. Where the file is refused, its integers of one element become constants."""
        scalars = [name for name in self._scalars() if name in feeds]
        try:
            model, self._decides = self._model(feeds, ()), []
        except UnsupportedError:
            if not scalars:
                raise
            model, self._decides = self._model(feeds, scalars), scalars
        self._first[self._key(feeds)] = model

    def _opened(self, key: Key, feeds: Mapping[str, Array]) -> Session:
        """A session for the sizes of these arrays."""
        model = self._first.pop(key, None)
        return Session(self._model(feeds, self._decides or ()) if model is None else model, self._device)

    def _model(self, feeds: Mapping[str, Array], constant: Sequence[str]) -> Model:
        """The model for the sizes of these arrays, some of which are constants."""
        sizes: dict[str, int] = {}
        for name, array in (self._items[0] if self._items else feeds).items():
            if name not in constant and len(self._inputs[name].shape) == array.ndim:
                sizes.update({f"{name}.{i}": array.shape[i] for i in self._open(name)})
        constants = {name: feeds[name] for name in constant}
        if self._items is None:
            return from_onnx(self._file, sizes, constants)
        items = [{name: array for name, array in item.items() if name not in constant} for item in self._items]
        return quantize(self._file, calibration=items, sizes=sizes, constants=constants, progress=False)


def install() -> None:
    """Makes `import onnxruntime` give this module, in this process. Raises InputError if ONNX Runtime was imported
    before by another package, which would go on using it."""
    here = sys.modules[__name__]
    if sys.modules.get("onnxruntime", here) is not here:
        raise InputError("onnxruntime was imported before: call install() first, before the packages that import it")
    inner = types.ModuleType("onnxruntime.capi")
    names = ("_pybind_state", "onnxruntime_pybind11_state", "onnxruntime_inference_collection")
    inner.__dict__.update(dict.fromkeys(names, here))
    sys.modules.update({"onnxruntime": here, "onnxruntime.capi": inner})
    sys.modules.update({f"onnxruntime.capi.{name}": here for name in names})


def set_default_device(device: Any) -> None:
    """Where the sessions run that name no device: as `device` of `Session`; None for the best adapter."""
    _default["device"] = device


def get_available_providers() -> list[str]:
    """The providers that sessions may be asked for."""
    return [PROVIDER, "CPUExecutionProvider"]


def get_device() -> str:
    """ONNX Runtime's word for a machine without CUDA."""
    return "CPU"


def _nothing(*arguments: Any) -> None:
    """Does nothing: nothing is logged here, and nothing is sent anywhere."""


get_all_providers = get_available_providers
set_default_logger_severity = set_default_logger_verbosity = disable_telemetry_events = _nothing
