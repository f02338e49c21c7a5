"""Awaited calls: the same outputs as calls, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.errors import InputError
from testbed import insides
from testbed.small import same_bytes
from tests.session.streams import EXPECTED, INPUTS


def test_awaited_calls(session: Session) -> None:
    async def several() -> list[Any]:
        return await asyncio.gather(*(session.run_async(x) for x in INPUTS * 2))

    for outputs, expected in zip(asyncio.run(several()), EXPECTED * 2, strict=True):
        same_bytes(outputs, expected)
    with pytest.raises(InputError, match="missing: x"):
        asyncio.run(session.run_async())


def test_the_event_loop_goes_on(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call waits for its turn on the device, other tasks run: here the one that lets it have its turn."""
    turn = threading.Lock()

    async def main() -> Any:
        call = asyncio.create_task(session.run_async(x=INPUTS[0]))
        while not waiting.is_set():
            await asyncio.sleep(0)
        assert not call.done()
        turn.release()
        return await call

    waiting = threading.Event()
    original = insides.runner(session).begin

    def begin(*arguments: Any) -> Any:
        waiting.set()
        with turn:
            return original(*arguments)

    monkeypatch.setattr(insides.runner(session), "begin", begin)
    turn.acquire()
    same_bytes(asyncio.run(main()), EXPECTED[0])


def test_a_cancelled_call_leaves_the_session_usable(session: Session) -> None:
    async def main() -> Any:
        call = asyncio.create_task(session.run_async(INPUTS[0]))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return await session.run_async(INPUTS[1])

    same_bytes(asyncio.run(main()), EXPECTED[1])
