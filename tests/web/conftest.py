"""What tests in browsers and under Node share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.engines import served


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Where a module's folder is served."""
    with served(folder) as address:
        yield address
