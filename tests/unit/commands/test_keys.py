from __future__ import annotations

import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from commands.doctor import examine
from commands.findings import Finding
from commands.keys import make_first_keys
from contracts.errors import InvalidSettings, WeightsRefused
from millrace import app
from runtime.settings import Settings, write_settings
from tests.unit.weights.test_signing import STEP
from weights.versions.keys import (
    SIGNING_KEY,
    TRUSTED_KEYS,
    keyring_of,
    next_file,
    read_private_key,
    signer_of,
    signing_file,
    trusted_folder,
    write_private_key,
    write_public_key,
)
from weights.versions.manifest import Manifest
from weights.versions.signing import Signer, private_pem, public_pem

ELSEWHERE = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SIGNING_KEY, TRUSTED_KEYS):
        monkeypatch.delenv(name, raising=False)


def settings_of(home: Path) -> Settings:
    return Settings(home=home, run="r", policy="p", base="b", tasks=(home / "task.toml",))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that knows where it is, and has no keys."""
    write_settings(settings_of(tmp_path / "home"), {})
    return tmp_path / "home"


def keys(home: Path, *arguments: str) -> str:
    """What `millrace keys ...` says, with its columns one space apart."""
    ran = CliRunner().invoke(app, ["keys", *arguments, "--home", str(home)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return re.sub(r"\s+", " ", ran.output)


def refused(home: Path, *arguments: str) -> str:
    with pytest.raises(InvalidSettings) as told:
        CliRunner().invoke(app, ["keys", *arguments, "--home", str(home)], catch_exceptions=False)
    return told.value.message


def signed(home: Path) -> Manifest:
    signer = signer_of(settings_of(home))
    assert signer is not None
    return signer.sign(STEP)


def code(home: Path, manifest: Manifest) -> str:
    """How a receiver with this home answers."""
    keyring = keyring_of(settings_of(home))
    assert keyring is not None
    try:
        keyring.verify(manifest)
    except WeightsRefused as error:
        return error.code
    return "taken"


def signing_id(home: Path) -> str:
    signer = read_private_key(signing_file(home))
    assert signer is not None
    return signer.key_id


def test_a_pair_is_made_once(home: Path) -> None:
    assert "has no keys; make a pair with: millrace keys new" in refused(home, "list")
    said = keys(home, "new")
    assert signing_id(home) in said
    assert code(home, signed(home)) == "taken"
    assert "millrace keys rotate" in refused(home, "new")
    assert f"{signing_id(home)} trusted, signs" in keys(home, "list")


def test_a_command_that_was_killed_between_both_halves_is_run_again(home: Path) -> None:
    write_private_key(signing_file(home), ELSEWHERE)
    keys(home, "new")
    assert signing_id(home) == Signer(ELSEWHERE).key_id
    assert code(home, signed(home)) == "taken"


def test_a_rotation_end_to_end(home: Path, tmp_path: Path) -> None:
    replica = tmp_path / "replica"
    replica.mkdir()
    keys(home, "new")
    old, before = signing_id(home), signed(home)
    keys(replica, "trust", str(trusted_folder(home) / f"{old}.pub"))
    assert code(replica, before) == "taken"

    said = keys(home, "rotate", "--prepare")
    assert signing_id(home) == old
    coming = read_private_key(next_file(home))
    assert coming is not None
    assert coming.key_id in said
    assert f"{coming.key_id} trusted, signs after `millrace keys rotate`" in keys(home, "list")
    assert keys(home, "rotate", "--prepare") == said, "again, it says the same key"
    keys(replica, "trust", str(trusted_folder(home) / f"{coming.key_id}.pub"))

    keys(home, "rotate")
    assert signing_id(home) == coming.key_id
    assert not next_file(home).exists()
    after = signed(home)
    assert [code(place, manifest) for place in (home, replica) for manifest in (before, after)] == ["taken"] * 4

    for place in (home, replica):
        keys(place, "retire", old)
        assert (code(place, before), code(place, after)) == ("unknown_key", "taken")
    keys(replica, "trust", str(replica / "keys" / "retired" / f"{old}.pub"))
    assert code(replica, before) == "taken"


def test_a_rotation_in_one_step(home: Path) -> None:
    keys(home, "new")
    old, before = signing_id(home), signed(home)
    said = keys(home, "rotate")
    assert old in said
    assert signing_id(home) != old
    assert signing_file(home).stat().st_mode & 0o777 == 0o600
    assert (code(home, before), code(home, signed(home))) == ("taken", "taken")


def test_a_replica_lists_what_it_trusts_and_can_make_nothing_of_a_rotation(tmp_path: Path) -> None:
    public = write_public_key(tmp_path, ELSEWHERE.public_key())
    replica = tmp_path / "replica"
    replica.mkdir()
    assert "is trusted:" in keys(replica, "trust", str(public))
    assert "is trusted already:" in keys(replica, "trust", str(public))
    assert "cannot publish any" in keys(replica, "list")
    assert "so there is nothing to rotate" in refused(replica, "rotate")


def test_what_must_stay_cannot_be_retired(home: Path, tmp_path: Path) -> None:
    keys(home, "new")
    old = signing_id(home)
    assert f"trusted: {old}" in refused(home, "retire", "0" * 16)
    assert "is not trusted" in refused(home, "retire", "../../x")
    assert f"{old} signs the versions of this home" in refused(home, "retire", old)
    keys(home, "rotate", "--prepare")
    coming = read_private_key(next_file(home))
    assert coming is not None
    assert "switches to" in refused(home, "retire", coming.key_id)
    assert code(home, signed(home)) == "taken"

    replica = tmp_path / "replica"
    public = write_public_key(trusted_folder(replica), ELSEWHERE.public_key())
    assert "is the only key" in refused(replica, "retire", public.stem)


def test_only_public_keys_can_be_trusted(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    for content, says in (
        (private_pem(ELSEWHERE), "holds a private key: only public keys"),
        (public_pem(ELSEWHERE.public_key())[:-9], "not PEM text of public keys"),
        (b"", "not PEM text of public keys"),
    ):
        file.write_bytes(content)
        assert says in refused(home, "trust", str(file))
    assert "No such file" in refused(home, "trust", str(tmp_path / "nothing"))
    assert not trusted_folder(home).exists()


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    for command in ("list", "new", "rotate"):
        assert "does not exist" in refused(tmp_path / "hmoe", command)
    assert not (tmp_path / "hmoe").exists()


def test_a_private_key_that_others_can_use_stops_every_command_that_needs_it(home: Path) -> None:
    keys(home, "new")
    signing_file(home).chmod(0o644)
    for arguments in (("list",), ("new",), ("rotate",), ("retire", signing_id_of_trusted(home))):
        assert "chmod 600" in refused(home, *arguments)


def signing_id_of_trusted(home: Path) -> str:
    [path] = trusted_folder(home).iterdir()
    return path.stem


@pytest.mark.parametrize(
    ("variable", "commands"),
    [
        (SIGNING_KEY, [("new",), ("rotate",)]),
        (TRUSTED_KEYS, [("new",), ("rotate",), ("trust", "x.pub"), ("retire", "0" * 16)]),
    ],
)
def test_what_a_variable_stands_before_is_not_changed(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, commands: list[tuple[str, ...]]
) -> None:
    monkeypatch.setenv(variable, "anything")
    for arguments in commands:
        assert f"{variable} is set" in refused(home, *arguments)
    assert not (home / "keys").exists()


def test_the_list_has_what_the_environment_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys(home, "new")
    monkeypatch.setenv(TRUSTED_KEYS, public_pem(ELSEWHERE.public_key()).decode())
    said = keys(home, "list")
    assert f"{Signer(ELSEWHERE).key_id} trusted in {TRUSTED_KEYS}" in said
    assert f"{signing_id(home)} NOT trusted, signs" in said


def test_options_before_the_command_are_not_lost_in_silence(home: Path) -> None:
    with pytest.raises(InvalidSettings, match="millrace keys new --home HOME"):
        CliRunner().invoke(app, ["keys", "--home", str(home), "new"], catch_exceptions=False)


def test_a_new_home_gets_a_pair_and_an_old_one_is_left_as_it_is(tmp_path: Path) -> None:
    make_first_keys(tmp_path)
    first = signing_id(tmp_path)
    make_first_keys(tmp_path)
    assert signing_id(tmp_path) == first
    assert code(tmp_path, signed(tmp_path)) == "taken"


def test_a_new_home_takes_what_the_environment_hands_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIGNING_KEY, private_pem(ELSEWHERE).decode())
    make_first_keys(tmp_path)
    assert not signing_file(tmp_path).exists()
    assert [path.stem for path in trusted_folder(tmp_path).iterdir()] == [Signer(ELSEWHERE).key_id]
    assert code(tmp_path, signed(tmp_path)) == "taken"


def test_a_new_home_that_was_told_whom_to_trust_makes_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUSTED_KEYS, public_pem(ELSEWHERE.public_key()).decode())
    make_first_keys(tmp_path)
    assert not (tmp_path / "keys").exists()


def finding(home: Path) -> Finding:
    [found] = [found for found in examine(home) if found.name == "keys"]
    return found


@pytest.mark.slow
def test_doctor_says_who_is_trusted_and_warns_where_nobody_need_sign(home: Path) -> None:
    assert finding(home)[1:3] == (False, True)
    assert "millrace keys new" in finding(home).says
    keys(home, "new")
    assert finding(home) == Finding("keys", True, True, f"{signing_id(home)} trusted; {signing_id(home)} signs")
    signing_file(home).chmod(0o640)
    assert "chmod 600" in finding(home).says
    signing_file(home).unlink()
    assert "only read here" in finding(home).says
    write_settings(settings_of(home).model_copy(update={"weights_unsigned": True}), {})
    assert finding(home)[1:3] == (False, False)
    assert "anybody who can write to the weight store" in finding(home).says
