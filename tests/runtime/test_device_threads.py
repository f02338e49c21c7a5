"""Devices in several threads; OpenGL, whose one context ends the process if shared."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.locks import ProcessLock
from testbed.devices import BACKENDS

ROOT = Path(__file__).parents[2]


def test_alive_waits_for_its_turn(device: Device) -> None:
    """On OpenGL, and where a session is recording: asking whether a device works is using it."""
    with ThreadPoolExecutor(1) as pool:
        with device.lock:
            asked = pool.submit(lambda: device.alive)
            time.sleep(0.05)
            assert not asked.done()
        assert asked.result(60)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_a_thread_waits_for_its_turn_leaves_the_lock_free() -> None:
    """Also one that comes when the thread was just given the lock."""
    lock, is_held = ProcessLock(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            time.sleep(0.1)  # the main thread waits now
            _thread.interrupt_main()  # which it notices in Python's own code, and not while it waits

    def take() -> None:
        with lock:
            pass

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        assert is_held.wait(60)
        with pytest.raises(KeyboardInterrupt):
            take()
        holding.result(60)
    taken = threading.Thread(target=take, daemon=True)
    taken.start()
    taken.join(10)
    assert not taken.is_alive()


def test_all_of_opengl_has_one_lock() -> None:
    if "opengl" not in BACKENDS:
        pytest.skip("this machine has no OpenGL compute")
    first = open_device("opengl")
    assert Device(first.wgpu).lock is first.lock
    assert open_device("vulkan").lock is not first.lock
    with ThreadPoolExecutor(1) as pool:
        with first.lock:
            asked = pool.submit(engines.native().adapters)
            time.sleep(0.05)
            assert not asked.done()
        assert asked.result(60)


TWO_THREADS = """
import threading, time
from q8ta_wgpu import Session
from q8ta_wgpu.runtime.engines import native
from testbed.small import small_input, small_model

MODEL, X, SECONDS = small_model(), small_input(), 6.0
runs, started = [0], threading.Event()

def run():
    with Session(MODEL, "opengl") as session:
        session(X)  # which compiles
        started.set()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            session(X)
            runs[0] += 1

thread = threading.Thread(target=run)
thread.start()
started.wait(120)
opened = 0
while thread.is_alive():
    assert native().adapters()
    for where in ("vulkan", "opengl", None):
        with Session(MODEL, where) as session:
            session(X)
            session.time(X, repeats=1, warmup=0)
    native().request(native().adapters()[0]).destroy()
    opened += 1
assert runs[0] > 1 and opened, (runs, opened)
print("ended well")
"""


def test_sessions_are_opened_while_another_thread_runs_on_opengl() -> None:
    """In a process of its own: what goes wrong here aborts it."""
    if "opengl" not in BACKENDS:
        pytest.skip("this machine has no OpenGL compute")
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS], capture_output=True, text=True, check=False, cwd=ROOT, timeout=240
    )
    assert done.stdout == "ended well\n", f"{done.returncode}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, done.stderr[-3000:]
