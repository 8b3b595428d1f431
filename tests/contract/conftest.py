"""Fixtures of the contract: ``place``, an empty directory in a mount, over every file system and channel."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.contract.servers import Pool, Server

SECONDS = 45
"""Within pytest's timeout, so that a hanging test fails instead of taking the others with it."""

_numbers = itertools.count()


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    servers = Pool()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(params=["direct", "pyfuse3"])
def channel(request: pytest.FixtureRequest) -> str:
    if request.param == "pyfuse3" and importlib.util.find_spec("pyfuse3") is None:
        lacking("no pyfuse3 (pip install 'plyfs[pyfuse3]')")
    return str(request.param)


@pytest.fixture(params=["memory", "workspace"])
def kind(request: pytest.FixtureRequest) -> str:
    """What is served. A test that looks into one of them says so with ``parametrize``."""
    return str(request.param)


@pytest.fixture
def server(kind: str, channel: str, pool: Pool) -> Iterator[Server]:
    """The server of the mount under test; shared by tests, which keep to their ``place``."""
    server = pool.server(kind, channel)
    server.watch(SECONDS)
    try:
        yield server
    finally:
        server.unwatch()


@pytest.fixture
def place(server: Server) -> Path:
    """An empty directory in the mount that anybody may write to."""
    path = server.path / f"place-{next(_numbers)}"
    path.mkdir()
    path.chmod(0o777)
    return path
