"""What sessions hold of a device: memory that those of one model share, and that closing gives back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session, TiledSession
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.runtime import constants
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed import harness, insides
from testbed.small import SHAPE, one_node, same_bytes, small_input, small_model

MODEL = small_model()


def test_sessions_of_one_model_share_its_weights(vulkan: Device) -> None:
    """Also of other sizes; what one of them closes stays for the others, and goes with the last."""
    vulkan = insides.like(vulkan, constants=(shared := constants.Constants()))
    model, wider = MODEL, MODEL.reshape((4, *SHAPE[1:]))
    first = Session(model, vulkan)
    known = set(insides.known(shared))
    others = Session(model, vulkan), Session(wider, vulkan)
    assert set(insides.known(shared)) == known
    first.close()
    x = np.concatenate([small_input(), small_input(1)])
    same_bytes(others[0](small_input()), Session(model, "reference")(small_input()))
    same_bytes(others[1](x), Session(wider, "reference")(x))
    for other in others:
        other.close()
    assert known and not insides.known(shared)


def test_sessions_of_one_model_share_its_program(vulkan: Device) -> None:
    """While one of them is open, unless the model has changed since."""
    model = Model(MODEL.graph.copy(), MODEL.structure)
    with Session(model, vulkan) as first, Session(model, vulkan) as second:
        assert first.program is second.program
        assert Session(model, vulkan, layouts="greedy").program is not first.program
        assert Session(Model(model.graph.copy(), model.structure), vulkan).program is not first.program
        name = next(name for name, array in model.graph.constants.items() if array.dtype == np.int8)
        model.graph.constants[name] = -model.graph.constants[name]
        x = small_input()
        with Session(model, vulkan) as third:
            assert third.program is not first.program
            same_bytes(third(x), Session(model, "reference")(x))
        same_bytes(second(x), Session(MODEL, "reference")(x))


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sessions_are_neither_copied_nor_pickled(made: Callable[[Any], Any]) -> None:
    """A copy would share the device's memory, and the first one closed would free it."""
    one = one_node("relu", (1, 1, 8, 8))
    for opened in (Session(one, "reference"), TiledSession(one, (1, 1, 8, 8), "reference")):
        with pytest.raises(InputError, match=r"copy or send `session.model`"):
            made(opened)
    assert made(one)


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_use_after_close(where: str) -> None:
    with Session(MODEL, where) as opened:
        same_bytes(opened(small_input()))
    opened.close()
    with pytest.raises(InputError, match="this session was closed"):
        opened(small_input())
    with pytest.raises(InputError, match="this session was closed"):
        opened.time(small_input())
    with pytest.raises(InputError, match="this session was closed"), opened:
        pass


def test_a_closed_program_is_never_submitted(vulkan: Device) -> None:
    """wgpu-native would end the process."""
    executor = Executor(harness.program_of(MODEL.graph, vulkan.target), vulkan)
    executor.close()
    executor.close()
    with pytest.raises(DeviceError, match="this program was closed"):
        executor.run([small_input()])


def test_threads_open_run_and_close_sessions_of_one_device(device: Device) -> None:
    models = [MODEL, MODEL.reshape((1, *SHAPE[1:])), MODEL.reshape((3, *SHAPE[1:]))]
    inputs = [np.resize(small_input(i), m.inputs["x"].shape) for i, m in enumerate(models)]
    expected = [Session(m, "reference")(x) for m, x in zip(models, inputs, strict=True)]

    def work(turn: int) -> None:
        i = turn % len(models)
        with Session(models[i], device) as opened:
            for _ in range(3):
                same_bytes(opened(inputs[i]), expected[i])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))


def test_closing_while_others_call(vulkan: Device) -> None:
    """Every call either finishes or says that the session was closed."""
    opened = Session(MODEL, vulkan)

    def call(turn: int) -> str:
        try:
            same_bytes(opened(small_input()))
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(call, range(40))
        opened.close()
    assert all("closed" in text for text in answers if text)
