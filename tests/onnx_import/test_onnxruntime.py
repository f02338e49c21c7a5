"""Sessions as ONNX Runtime has them, beside ONNX Runtime's own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import q8ta_wgpu as q8
import q8ta_wgpu.onnxruntime as ort
from q8ta_wgpu.ir.graph import Array
from testbed.onnx.networks import Net, quantized
from tests.onnx_import.test_branches import by_rate
from tests.onnx_import.test_sizes import attention, drawn, image

PROVIDERS = ["CPUExecutionProvider"]


def both(data: bytes) -> tuple[ort.InferenceSession, onnxruntime.InferenceSession]:
    return ort.InferenceSession(data, device="reference"), onnxruntime.InferenceSession(data, providers=PROVIDERS)


def two_outputs() -> bytes:
    net = Net((1, 3, 8, 8))
    first = net.add("Relu", net.conv("x", 3, 4))
    return bytes(net.model(first, net.add("GlobalAveragePool", first)).SerializeToString())


def test_what_a_file_says_of_itself_is_what_onnx_runtime_says() -> None:
    for data in (two_outputs(), attention(), image()):
        ours, theirs = both(data)
        for mine, other in zip(ours.get_inputs(), theirs.get_inputs(), strict=True):
            assert (mine.name, mine.type, mine.shape) == (other.name, other.type, other.shape)
        assert [(p.name, p.type) for p in ours.get_outputs()] == [(p.name, p.type) for p in theirs.get_outputs()]
        assert ours.get_modelmeta().graph_name == theirs.get_modelmeta().graph_name


def test_outputs_come_in_the_order_that_is_asked_for() -> None:
    ours, theirs = both(two_outputs())
    x = drawn(1, 3, 8, 8)
    names = [port.name for port in ours.get_outputs()]
    for wanted in (None, [], names[::-1], names[:1]):
        expected: list[Array] = theirs.run(wanted or None, {"x": x})
        found = ours.run(wanted, {"x": x})
        assert len(found) == len(expected)
        for y, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, e, atol=1e-5)
    with pytest.raises(q8.InputError, match=r"no output 'z'; its outputs are '.*'"):
        ours.run(["z"], {"x": x})
    with pytest.raises(q8.InputError, match="inputs are missing: 'x'"):
        ours.run(None, {})
    with pytest.raises(q8.InputError, match="no input 'z'; its inputs are 'x'"):
        ours.run(None, {"x": x, "z": x})


def test_open_sizes_are_those_that_arrive() -> None:
    for data, shapes in (
        (attention(), [(2, 12, 32), (1, 5, 32), (2, 12, 32)]),
        (image(), [(1, 3, 16, 8), (1, 3, 7, 9)]),
    ):
        ours, theirs = both(data)
        for shape in shapes:
            x = drawn(*shape)
            (expected,) = theirs.run(None, {"x": x})
            np.testing.assert_allclose(ours.run(None, {"x": x})[0], expected, atol=1e-4)


def test_a_number_that_decides_a_branch_may_differ_between_runs() -> None:
    session = ort.InferenceSession(by_rate(), device="reference")
    x = np.array([[-1, 2, -3, 4]], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "sr": np.array(16000)})[0], np.maximum(x, 0))
    with pytest.raises(q8.UnsupportedError, match="Det"):
        session.run(None, {"x": x, "sr": np.array(8000)})
    np.testing.assert_array_equal(session.run(None, {"x": x, "sr": np.array(16000)})[0], np.maximum(x, 0))


def test_warnings_name_the_line_of_the_user() -> None:
    zeros = {"x": np.zeros((2, 12, 32), np.float32)}
    for call in (
        lambda: q8.quantize(attention(), calibration=[zeros], sizes={"N": 2, "T": 12}),
        lambda: ort.InferenceSession(attention(), calibration=[zeros], device="reference"),
    ):
        with pytest.warns(UserWarning, match="zeros") as told:
            call()
        assert [each.filename for each in told] == [__file__]


def test_quantized_files_run_as_they_are_and_float_ones_by_calibration() -> None:
    x = drawn(1, 16, 24, 24)
    data = quantized("single", "QDQ", "s8s8")
    ours = ort.InferenceSession(data, device="reference")
    np.testing.assert_array_equal(ours.run(None, {"x": x})[0], q8.Session(q8.from_onnx(data), device="reference")(x))
    items = [{"x": drawn(2, 12, 32) * factor} for factor in (1, 0.9, 0.8)]
    calibrated = ort.InferenceSession(attention(), calibration=items, device="reference")
    expected = onnxruntime.InferenceSession(attention(), providers=PROVIDERS).run(None, items[0])[0]
    found = calibrated.run(None, items[0])[0]
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
    with pytest.raises(q8.InputError, match="the calibration is empty"):
        ort.InferenceSession(attention(), calibration=[], device="reference")


def test_what_is_no_feed_is_refused_by_name() -> None:
    """Python's own TypeErrors came through, and arrays beyond the file's inputs were dropped."""
    session, x = ort.InferenceSession(two_outputs(), device="reference"), drawn(1, 3, 8, 8)
    for feed in (None, [x], x):
        with pytest.raises(q8.InputError, match="input_feed is a dict of arrays by the names of inputs, found"):
            session.run(None, feed)  # type: ignore[arg-type]
    for names in (5, "Relu"):
        with pytest.raises(q8.InputError, match="output_names is a list of outputs' names or None, found"):
            session.run(names, {"x": x})  # type: ignore[arg-type]
    with pytest.raises(q8.InputError, match="the file takes 1 input, found 2"):
        ort.InferenceSession(two_outputs(), calibration=[(x, x)], device="reference")
    for calibration in (5, x):
        with pytest.raises(q8.InputError, match="calibration must be an iterable of inputs"):
            ort.InferenceSession(two_outputs(), calibration=calibration, device="reference")  # type: ignore[arg-type]


def test_a_feed_of_another_shape_is_refused_by_the_shape_of_the_file() -> None:
    """The message spoke of model.reshape, where there is no model."""
    session = ort.InferenceSession(two_outputs(), device="reference")
    with pytest.raises(
        q8.InputError, match=r"input 'x' must have the shape \[.*3, 8, 8\], as the file says, found \[1, 2, 8, 8\]$"
    ):
        session.run(None, {"x": drawn(1, 2, 8, 8)})
    with pytest.raises(q8.InputError, match=r"\[1, 3, 8, 8\], as the file says, found \[2, 3, 8, 8\]"):
        ort.InferenceSession(two_outputs(), calibration=[drawn(2, 3, 8, 8)], device="reference")
    calibrated = ort.InferenceSession(image(), calibration=[drawn(1, 3, 8, 8)], device="reference")
    with pytest.raises(q8.InputError, match=r"\[1, 3, 8, 8\], as the calibration has it, found \[1, 3, 16, 8\]"):
        calibrated.run(None, {"x": drawn(1, 3, 16, 8)})


def test_options_keep_what_packages_set() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    options.add_free_dimension_override_by_name("N", 2)
    session = ort.InferenceSession(attention(), options, providers=["CUDAExecutionProvider"], device="reference")
    assert session.get_providers() == ["Q8taExecutionProvider"]
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert session.run(None, {"x": drawn(2, 4, 32)})[0].shape == (2, 4, 32)


def test_a_package_that_imports_onnx_runtime_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(two_outputs())
    (tmp_path / "package.py").write_text(
        textwrap.dedent(
            """
            import onnxruntime
            from onnxruntime import InferenceSession, SessionOptions
            from onnxruntime.capi import _pybind_state as C
            from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

            def run(x):
                session = InferenceSession("net.onnx", SessionOptions(), providers=C.get_available_providers())
                try:
                    session.run(None, {"y": x})
                except InvalidArgument:
                    return session.run(None, {session.get_inputs()[0].name: x})
            """
        )
    )
    code = (
        "import numpy as np, q8ta_wgpu.onnxruntime as ort\n"
        "ort.install(); ort.install(); ort.set_default_device('reference')\n"
        "import package\n"
        "print([y.shape for y in package.run(np.ones((1, 3, 8, 8), np.float32))])"
    )
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[(1, 4, 8, 8), (1, 4, 1, 1)]\n"
    with pytest.raises(q8.InputError, match="onnxruntime was imported before"):
        ort.install()
