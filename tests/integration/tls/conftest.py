"""One authority, one issuer of tokens and one broker for all tests of this folder."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.servers.authority import Authority
from tests.worlds.servers.broker import TlsBroker, a_broker
from tests.worlds.servers.services import kafka_servers
from tests.worlds.servers.tokens import TokenIssuer, token_endpoint


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="session")
def authority(folder: Path) -> Authority:
    return Authority(folder, "authority")


@pytest.fixture(scope="session")
def stranger(folder: Path) -> Authority:
    """An authority that no server knows."""
    return Authority(folder, "stranger")


@pytest.fixture(scope="session")
def issuer(folder: Path) -> TokenIssuer:
    return TokenIssuer(folder)


@pytest.fixture(scope="session")
def token_url(issuer: TokenIssuer, authority: Authority) -> Iterator[str]:
    with token_endpoint(issuer, authority.issue("endpoint")) as url:
        yield url


@pytest.fixture(scope="session")
def broker(authority: Authority, issuer: TokenIssuer) -> Iterator[TlsBroker]:
    kafka_servers()  # not asked for where no server is
    with a_broker(authority, issuer) as broker:
        yield broker


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The client forgets the sockets of refused connections; they are collected here, where the warning is expected."""
    yield
    gc.collect()
