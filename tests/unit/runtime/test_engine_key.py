from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from runtime.engine_key import ENGINE_KEY, FILE_NAME, authorization, engine_key, is_authorized


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE_KEY, raising=False)


def test_a_home_has_one_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    home = tmp_path / "home"
    key = engine_key(home)
    assert engine_key(home) == key
    assert engine_key(tmp_path / "other") != key
    assert (home / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [FILE_NAME]


def test_of_many_that_make_it_at_once_all_get_the_same(tmp_path: Path) -> None:
    for attempt in range(20):
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(engine_key, [tmp_path / str(attempt)] * 8))) == 1


def test_the_variable_stands_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = engine_key(tmp_path)
    monkeypatch.setenv(ENGINE_KEY, "told-" + "x" * 16)
    assert engine_key(tmp_path) == "told-" + "x" * 16
    monkeypatch.setenv(ENGINE_KEY, "")
    assert engine_key(tmp_path) == key


@pytest.mark.parametrize("told", ["short", "two words are not a key", "x" * 257])
def test_what_is_no_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv(ENGINE_KEY, told)
    with pytest.raises(InvalidSettings, match=ENGINE_KEY):
        engine_key(tmp_path)
    monkeypatch.delenv(ENGINE_KEY)
    (tmp_path / FILE_NAME).write_text(told)
    with pytest.raises(InvalidSettings, match=FILE_NAME):
        engine_key(tmp_path)


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSettings, match=r"set MILLRACE_ENGINE_KEY"):
        engine_key(tmp_path / "file")


def test_only_the_header_with_the_key_is_taken() -> None:
    key = "k" * 32
    assert is_authorized(authorization(key)["authorization"].encode(), key)
    for header in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + key.encode(),
        b"Bearer " + key.encode() + b"x",
        key.encode(),
    ):
        assert not is_authorized(header, key)
    assert not is_authorized("Bearer ключ".encode(), key)
