"""A home whose settings and secrets come from outside: what init makes, what it refuses, and what it leaves to others."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands.home import prepare_home
from commands.up import new_settings
from contracts.errors import InvalidSettings, Unauthorized
from contracts.keys import check_key
from millrace import app
from pipelines.training.settings import AdapterSettings, TrainingSettings
from runtime.operator_key import APP_KEY, OPERATOR_KEY
from runtime.settings import Settings, load_section, load_settings, make_section, to_toml, write_settings
from runtime.settings_file import SETTINGS
from tests.given_secrets import NEEDED

PRODUCT = Path(__file__).parent.parent.parent.parent / "examples" / "reservations"


def made() -> dict[str, str]:
    """What `millrace keys secrets` prints."""
    printed = CliRunner().invoke(app, ["keys", "secrets"])
    assert printed.exit_code == 0, printed.output
    return dict(line.split("=", 1) for line in printed.output.splitlines())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config" / "millrace.toml"
    file.parent.mkdir()
    own = {"run": "main", "policy": "reservations", "base": str(PRODUCT / "base")}
    file.write_text(to_toml({"millrace": own | {"tasks": [str(PRODUCT / "task.toml")]}}))
    monkeypatch.setenv(SETTINGS, str(file))
    secrets = made()
    assert secrets.keys() == {name for names in NEEDED.values() for name in names}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def knows(home: Path, key: str) -> bool:
    try:
        with load_settings(home).snapshot() as connection:
            check_key(connection, f"Bearer {key}")
    except Unauthorized:
        return False
    return True


@pytest.mark.slow
def test_init_uses_what_it_is_given_and_writes_no_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = made()
    first = prepare_home(load_settings(home), {})
    assert first.app_key is None
    assert first.operator_key != secrets[OPERATOR_KEY]
    assert not {"millrace.toml", "keys", "operator.key", "engine.key"} & {path.name for path in home.iterdir()}
    for name in (APP_KEY, OPERATOR_KEY):  # an upgrade with new keys
        assert not knows(home, secrets[name])
        monkeypatch.setenv(name, secrets[name])
    again = prepare_home(load_settings(home), {})
    assert (again.operator_key, again.settings.run) == (secrets[OPERATOR_KEY], "main")
    assert all(knows(home, secrets[name]) for name in (APP_KEY, OPERATOR_KEY))
    assert knows(home, first.operator_key), "the old one is revoked by hand"


@pytest.mark.parametrize("name", sorted(set(NEEDED["init"]) - {APP_KEY, "MILLRACE_TRUSTED_KEYS"}))
def test_a_missing_secret_is_named_before_anything_is_made(
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(InvalidSettings, match=f"{name} is not set"):
        prepare_home(load_settings(home), {})
    assert not (home / "millrace.db").exists()


def test_a_key_of_another_kind_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPERATOR_KEY, made()[APP_KEY])
    with pytest.raises(InvalidSettings, match="MILLRACE_OPERATOR_KEY has no operator key"):
        prepare_home(load_settings(home), {})


def test_options_that_would_not_count_are_refused(home: Path) -> None:
    refused = CliRunner().invoke(app, ["init", "--home", str(home), "--name", "other", "--task", "x.toml"])
    assert isinstance(refused.exception, InvalidSettings)
    assert refused.exception.message.endswith("change them there, and leave out --task, --name")
    with pytest.raises(InvalidSettings, match="MILLRACE_SETTINGS is set"):
        new_settings(home, {})


def test_without_given_settings_init_needs_a_policy_and_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS, raising=False)
    refused = CliRunner().invoke(app, ["init", "--home", str(tmp_path)])
    assert isinstance(refused.exception, InvalidSettings)
    assert "--policy and --task" in refused.exception.message


def test_a_table_inside_a_section_is_read_again_and_keeps_what_a_start_does_not_set(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),))
    adapter = {"rank": 8, "alpha": 64.0, "targets": ["q_proj", "v_proj"]}
    write_settings(settings, {"training": make_section("[training]", TrainingSettings, adapter=adapter)})
    write_settings(settings, {"training": make_section("[training]", TrainingSettings, adapter={"rank": 4})})
    held = load_section(tmp_path, "training", TrainingSettings).adapter
    assert held == AdapterSettings(rank=4, alpha=64.0, targets=("q_proj", "v_proj"))
