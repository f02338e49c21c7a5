"""What tests of streams and of awaited calls share."""

from collections.abc import Iterator

import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.runtime.device import Device
from tests.session.streams import MODEL


@pytest.fixture(params=["device", "reference"])
def session(request: pytest.FixtureRequest, device: Device) -> Iterator[Session]:
    with Session(MODEL, device if request.param == "device" else "reference") as opened:
        yield opened
