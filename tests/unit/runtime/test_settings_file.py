"""Settings that are given from outside: what a variable names, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from pipelines.release.webhooks.messages import read_secret
from runtime.engine_key import ENGINE_KEY, engine_key
from runtime.operator_key import OPERATOR_KEY, operator_key
from runtime.sentinels import sentinels_of_home
from runtime.settings import load_settings
from runtime.settings_file import SETTINGS

TEXT = """
[millrace]
run = "main"
policy = "p"
base = "/base"
tasks = ["/task.toml"]
database_url = "postgresql+psycopg://me:${WORD}@host/db"
region = "${WHERE}"

[release]
sentinels = "/${WHERE}/sentinels.jsonl"
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config" / "millrace.toml"
    file.parent.mkdir()
    file.write_text(TEXT)
    monkeypatch.setenv(SETTINGS, str(file))
    monkeypatch.setenv("WORD", "a/b@c ${d}\n")
    monkeypatch.setenv("WHERE", "here")
    for name in (ENGINE_KEY, OPERATOR_KEY, "MILLRACE_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def test_one_file_serves_many_homes_and_names_variables(given: Path) -> None:
    settings = load_settings(given)
    assert settings.home == given
    assert settings.database_url == "postgresql+psycopg://me:a%2Fb%40c%20%24%7Bd%7D@host/db"
    assert settings.region == "here"
    assert sentinels_of_home(given) == Path("/here/sentinels.jsonl")


def test_a_variable_that_is_not_set_is_named_with_its_place(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORD")
    with pytest.raises(InvalidSettings, match=r"\[millrace\] database_url names \$\{WORD\}, which is not set"):
        load_settings(given)


def test_a_file_that_is_not_there_is_named(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTINGS, "/nowhere/millrace.toml")
    with pytest.raises(InvalidSettings, match=r"/nowhere/millrace\.toml does not exist; MILLRACE_SETTINGS names it"):
        load_settings(given)


def test_no_secret_is_made_in_a_home_that_others_do_not_see(given: Path) -> None:
    for read, variable in (
        (engine_key, ENGINE_KEY),
        (operator_key, OPERATOR_KEY),
        (read_secret, "MILLRACE_WEBHOOK_SECRET"),
    ):
        with pytest.raises(InvalidSettings, match=f"{variable} is not set"):
            read(given)
    assert not given.exists()


def test_the_settings_of_a_home_name_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS, raising=False)
    file = tmp_path / "millrace.toml"
    file.write_text(TEXT.replace("[millrace]", f'[millrace]\nhome = "{tmp_path}"').replace('region = "${WHERE}"', ""))
    assert load_settings(tmp_path).database_url == "postgresql+psycopg://me:${WORD}@host/db"
