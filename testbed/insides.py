"""What tests see of an open session and a device that nobody else does: private names, in one place."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

from q8ta_wgpu.runtime.constants import Constants
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.recording import Recorder
from q8ta_wgpu.session.session import Session


def executor(session: Session) -> Executor:
    """What runs a session's program; the session is on a device."""
    found: Executor | None = runner(session).executor
    assert found is not None
    return found


def runner(session: Session) -> Any:
    """What a session begins its calls by."""
    return session._runner


def results(session: Session) -> Any:
    """The memory that a session gives results in."""
    return runner(session)._results


def other_sizes(session: Session) -> Any:
    """The programs that a session keeps for sizes other than its own."""
    return session._others


def runs(of: Executor) -> Any:
    """The recorded runs of an executor, and their staging buffers."""
    return of._runs


def recorder(of: Executor) -> Recorder:
    """What records an executor's runs."""
    return of._recorder


def free(memory: Any) -> MutableMapping[int, Any]:
    """Arrays of a memory of results that are free again, by their size."""
    found: MutableMapping[int, Any] = memory._free
    return found


def like(device: Device, **traits: Any) -> Device:
    """A device as another one, but for these traits: attributes, or what was measured once. They share all else, and
    the other one stays as it is."""
    made = copy.copy(device)
    measured = {name: value for name, value in traits.items() if isinstance(getattr(Device, name, None), property)}
    kept = {name: value for name, value in traits.items() if name not in measured}
    vars(made).update(kept, _measured={**device._measured, **measured}, _right=set())
    return made


def pipelines(device: Device) -> tuple[Any, Any]:
    """The pipelines of a device that are in use, and its recent ones."""
    return device._held, device._recent


def known(constants: Constants) -> Any:
    """The constants that programs share."""
    return constants._known


def listed(engine: Any) -> list[Any]:
    """The adapters that an engine has listed, which it keeps."""
    found: list[Any] = engine._listed
    return found
