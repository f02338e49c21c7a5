"""README's snippet and commands on networks README names: the same bytes by rule, tuned and through every command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.runtime.device import Device
from testbed.sample import in_turn
from tests.frontend.test_whole_networks import quantized


@pytest.mark.parametrize("name", in_turn(["unet", "mobilenet_v2"], 0, 2))
@pytest.mark.usefixtures("quick_tuning")
def test_a_network_through_the_public_face(
    name: str, vulkan: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images are small and samples few, as tuning times every kernel of every layer. The command tunes, the session
    uses its times."""
    monkeypatch.chdir(tmp_path)
    _, model, x = quantized(name)
    x = np.ascontiguousarray(x[:, :, :32, :32])
    model = model.reshape(x.shape)
    model.save("net.q8ta")
    np.save("x.npy", x)
    expected = q8.Session(model, "reference")(x)

    assert main(["tune", "net.q8ta", "--device", "vulkan"]) == 0
    assert main(["show", "net.q8ta"]) == 0
    assert main(["run", "net.q8ta", "--input", "x.npy", "--output", "y.npy", "--device", "vulkan"]) == 0
    assert main(["time", "net.q8ta", "--repeats", "1", "--device", "vulkan"]) == 0
    out = capsys.readouterr().out
    assert "candidates timed" in out and "ms GPU time" in out
    np.testing.assert_array_equal(np.load("y.npy"), expected)

    loaded = q8.load("net.q8ta")
    with q8.Session(loaded, vulkan) as by_rule, q8.Session(loaded, vulkan, tune=True) as tuned:
        value = by_rule.program.dispatches[-1].value
        for session in (by_rule, tuned):
            np.testing.assert_array_equal(session(x), expected)
            for found in session.run_many([x, x, x]):
                np.testing.assert_array_equal(found, expected)
    assert main(["wgsl", "net.q8ta", value]) == 0
    assert "@compute" in capsys.readouterr().out
