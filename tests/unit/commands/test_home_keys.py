"""What `prepare_home` does about the keys that sign versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commands.home import prepare_home
from commands.keys import renew, retire, rotate
from contracts.errors import InvalidSettings, WeightsRefused
from runtime.settings import Settings, load_settings, write_settings
from tests.unit.weights.test_signing import STEP
from weights.stores.opening import open_store_at, open_weight_store
from weights.versions.keys import SIGNING_KEY, TRUSTED_KEYS, keyring_of, signer_of, trusted_folder
from weights.versions.signing import Keyring
from weights.versions.vouching import Snapshots

PRODUCT = Path(__file__).parent.parent.parent.parent / "examples" / "reservations"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in (SIGNING_KEY, TRUSTED_KEYS):
        monkeypatch.delenv(name, raising=False)
    base = str(PRODUCT / "base")
    return Settings(home=tmp_path, run="r", policy="reservations", base=base, tasks=(PRODUCT / "task.toml",))


def test_a_new_home_can_sign_and_keeps_its_key(settings: Settings) -> None:
    prepare_home(settings, {})
    signer, keyring = signer_of(settings), keyring_of(settings)
    assert signer is not None
    assert keyring is not None
    prepare_home(settings, {})
    assert keyring.key_ids == (signer.key_id,)
    keyring.verify(signer.sign(STEP))


def test_version_0_is_signed_and_refused_once_its_key_is_retired(settings: Settings) -> None:
    prepare_home(settings, {})
    store = open_weight_store(settings)
    [old] = [path.stem for path in trusted_folder(settings.home).iterdir()]
    assert store.manifest("reservations", 0).key == old
    rotate(settings.home, prepare=False)
    with pytest.raises(InvalidSettings, match=rf"only {old} signed 1 of the versions in the store, 0 to 0"):
        retire(old, settings.home, force=False)
    assert store.load("reservations", 0)
    retire(old, settings.home, force=True)
    with pytest.raises(WeightsRefused) as refused:
        store.load("reservations", 0)
    assert refused.value.code == "unknown_key"


def test_a_home_of_an_older_release_is_refused_until_it_has_keys(settings: Settings) -> None:
    prepare_home(settings, {})
    shutil.rmtree(settings.home / "keys")
    for _ in range(2):
        with pytest.raises(InvalidSettings, match="millrace keys new --home"):
            prepare_home(settings, {})
    assert not (settings.home / "keys").exists()


def test_that_nobody_need_sign_is_said_once_and_stays(settings: Settings) -> None:
    prepare_home(settings, {})
    shutil.rmtree(settings.home / "keys")
    write_settings(settings.model_copy(update={"weights_unsigned": True}), {})
    prepare_home(settings, {})
    assert load_settings(settings.home).weights_unsigned
    assert not (settings.home / "keys").exists()


def test_once_the_new_key_lists_what_the_old_one_signed_it_can_retire(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_home(settings, {})
    [old] = [path.stem for path in trusted_folder(settings.home).iterdir()]
    renew(settings.home)
    rotate(settings.home, prepare=False)
    with pytest.raises(InvalidSettings, match="millrace keys renew"):
        retire(old, settings.home, force=False)
    renew(settings.home)
    assert "snapshot 2 of 1 versions is good until" in capsys.readouterr().out
    retire(old, settings.home, force=False)
    for publishes in (False, True):
        assert open_weight_store(settings, publishes=publishes).load("reservations", 0)
    prepare_home(settings, {})
    assert [path.stem for path in trusted_folder(settings.home).iterdir()] != [old]


def test_a_reader_that_starts_elsewhere_after_that_needs_the_list_alone(settings: Settings, tmp_path: Path) -> None:
    prepare_home(settings, {})
    [old] = [path.stem for path in trusted_folder(settings.home).iterdir()]
    rotate(settings.home, prepare=False)
    renew(settings.home)
    retire(old, settings.home, force=False)
    trusted = keyring_of(settings)
    assert isinstance(trusted, Keyring)
    store = open_store_at(settings.weights, Snapshots(trusted, tmp_path / "elsewhere"))
    assert store.load("reservations", 0)
    forgetful = open_store_at(settings.weights, trusted)
    with pytest.raises(WeightsRefused):
        forgetful.load("reservations", 0)


def test_a_home_that_signs_nothing_has_nothing_to_renew(settings: Settings) -> None:
    prepare_home(settings, {})
    write_settings(settings.model_copy(update={"weights_unsigned": True}), {})
    with pytest.raises(InvalidSettings, match="weights_unsigned"):
        renew(settings.home)


def test_a_home_on_a_store_of_another_run_does_not_start(settings: Settings, tmp_path: Path) -> None:
    prepare_home(settings, {})
    shutil.copytree(settings.home / "keys", tmp_path / "other" / "keys")
    other = settings.model_copy(update={"home": tmp_path / "other", "run": "r2"})
    shutil.copytree(settings.weights, other.weights)
    with pytest.raises(WeightsRefused) as refused:
        prepare_home(other, {})
    assert refused.value.code == "wrong_run"
