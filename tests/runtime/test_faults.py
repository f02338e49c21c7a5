"""What goes wrong around a process: forks, signals, and caches that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.runtime import probe
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning.tuner import times_of
from testbed.small import small_input, small_model

ROOT = Path(__file__).parents[2]


def program(text: str) -> str:
    """Runs Python in a process of its own, which must end well; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


FORKED = """
import multiprocessing, sys
from q8ta_wgpu import DeviceError, Session
from testbed.small import small_input, small_model

MODEL, X = small_model(), small_input()
opened = Session(MODEL, sys.argv[1]) if len(sys.argv) > 1 else None

def told(queue, work):
    try:
        queue.put(str(work()["y"].sum()))
    except DeviceError as error:
        queue.put(str(error))

def run_mine():
    with opened:
        return opened(X)

def run_new():
    with Session(MODEL, "vulkan") as session:
        return session(X)

def in_child(method, work):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=told, args=(queue, work))
    child.start()
    answer = queue.get(timeout=100)
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    return answer
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_after_a_session_was_opened() -> None:
    """It says so, where a driver would wait for ever; the reference works, and so does the parent afterwards."""
    text = """
sys.argv[1:] = ["vulkan"]
for work in (run_mine, run_new, lambda: Session(MODEL, "reference")(X)):
    print(in_child("fork", work))
print(opened(X)["y"].sum())
"""
    text = FORKED.replace("opened =", "sys.argv[1:] = ['vulkan']\nopened =") + text
    mine, new, reference, parent = program(text).splitlines()
    for answer in (mine, new):
        assert "this process was forked from process" in answer and "get_context('spawn')" in answer
    assert reference == parent == str(Session(small_model(), "reference")(small_input())["y"].sum())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("sessions", [1, 2])
def test_a_forked_child_may_leave_its_parents_stream(sessions: int) -> None:
    text = f"""
import os
from q8ta_wgpu import run_many
results = run_many([Session(MODEL, "vulkan") for _ in range({sessions})], [X] * 8)
next(results)
if child := os.fork():
    print(os.waitpid(child, 0)[1], len(list(results)))
else:
    try:
        results.close()
    except BaseException:
        os._exit(1)
    os._exit(0)
"""
    assert program(FORKED + text).split() == ["0", "7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_before_any_session() -> None:
    found = program(FORKED + "print(in_child('fork', run_new))").strip()
    assert found == str(Session(small_model(), "reference")(small_input())["y"].sum())


def test_a_spawned_process(tmp_path: Path) -> None:
    script = tmp_path / "spawning.py"
    text = FORKED.replace("opened = ", "opened = None if __name__ != '__main__' else ")
    script.write_text(text + "\nif __name__ == '__main__':\n    print(in_child('spawn', run_new))\n")
    done = subprocess.run(
        [sys.executable, str(script), "vulkan"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.stdout.strip() == str(Session(small_model(), "reference")(small_input())["y"].sum()), done.stderr


OUTSIDE = """// reads and writes far outside
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
struct Params { far: u32 };
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(1)
fn main() {
  for (var i = 0u; i < 8u; i++) {
    y[i] = x[params.far << i];
    y[(params.far << i) + 8u] = 77u;
  }
}
"""


def test_shaders_stay_in_their_buffers(device: Device) -> None:
    """Wherever an index points: what is read is of the buffer or 0, what is written stays in the buffer or nowhere."""
    found = probe.run(
        device,
        OUTSIDE,
        (np.full(16, 5, np.int32), np.zeros(8, np.int32)),
        np.full(4, 1 << 16, np.uint32).tobytes(),
        1,
        1,
    )
    assert set(found.tolist()) <= {0, 5, 77}


SIGNALLED = """
import signal, time
import numpy as np
from q8ta_wgpu import Session
from testbed.small import small_input, small_model

X = small_input()
expected = Session(small_model(), "reference")(X)["y"]
signal.signal(signal.SIGALRM, signal.default_int_handler)
with Session(small_model(), "vulkan") as session:
    stopped = 0
    for turn in range(20):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.001 * turn)
            end = time.monotonic() + 5
            while time.monotonic() < end:
                session(X)
        except KeyboardInterrupt:
            stopped += 1
        np.testing.assert_array_equal(session(X)["y"], expected)
print(stopped)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_interrupts_in_runs() -> None:
    """Twenty, at times that differ: they come through, and the session still computes the same bytes. One that falls
    into a destructor is Python's to print and forget."""
    assert int(program(SIGNALLED)) >= 18


def test_a_tuning_cache_on_a_full_disk(caches: Path, full_disk: Callable[[int], None]) -> None:
    """The file there was stays, and the note says why nothing is kept."""
    kept = times_of({})
    kept.found["a"] = 1.0
    kept.save()
    assert kept.note == ""
    full_disk(0)
    again = times_of({})
    again.found["b"] = 2.0
    again.save()
    assert "No space left on device" in again.note and "nothing is kept" in again.note
    assert list(times_of({}).found) == ["a"]
    assert [path for path in caches.iterdir() if path != kept.path] == []
