"""The client for pages is as small as its page says; that it works is tested in a browser."""

from __future__ import annotations

import json

from tests.worlds.paths import ROOT

CLIENT = ROOT / "clients" / "javascript"


def test_the_client_is_small_as_it_is_and_needs_nothing() -> None:
    script = (CLIENT / "index.js").read_bytes()
    assert len(script) < 3000
    assert b"import" not in script
    package = json.loads((CLIENT / "package.json").read_text())
    assert not package.keys() & {"dependencies", "peerDependencies", "scripts"}
    assert {name for name in package["files"] if not (CLIENT / name).exists()} == set()
    assert len((CLIENT / "example" / "Answer.jsx").read_text().splitlines()) <= 20
