"""One Millrace for every test of this folder that asks the Qwen chain: a start takes longer than all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worlds.policies.served import QWEN, Served, serve_chain


@pytest.fixture(scope="package")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve_chain(tmp_path_factory.mktemp("qwen"), "qwen3", QWEN)
