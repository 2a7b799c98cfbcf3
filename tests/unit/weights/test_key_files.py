from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Public

from contracts.errors import InvalidSettings, WeightsRefused
from runtime.settings import Settings
from tests.unit.weights.examples import refused
from tests.unit.weights.test_signing import STEP
from weights.versions.keys import (
    SIGNING_KEY,
    TRUSTED_KEYS,
    keyring_of,
    move_to_retired,
    signer_of,
    signing_file,
    signing_key,
    trusted_folder,
    trusted_keys,
    write_private_key,
    write_public_key,
)
from weights.versions.signing import Keyring, Signer, key_id_of, private_pem, public_pem

PRIVATE, OTHER = (ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2))
ID, OTHER_ID = Signer(PRIVATE).key_id, Signer(OTHER).key_id


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SIGNING_KEY, TRUSTED_KEYS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", run="r", policy="p", base="b", tasks=(tmp_path / "task.toml",))


@pytest.fixture
def home(settings: Settings) -> Path:
    """A home with a pair."""
    write_private_key(signing_file(settings.home), PRIVATE)
    write_public_key(trusted_folder(settings.home), PRIVATE.public_key())
    return settings.home


def keyring(settings: Settings) -> Keyring:
    found = keyring_of(settings)
    assert found is not None
    return found


def signer(settings: Settings) -> Signer:
    found = signer_of(settings)
    assert found is not None
    return found


def test_what_is_written_is_read_and_only_the_owner_can(settings: Settings, home: Path) -> None:
    keyring(settings).verify(signer(settings).sign(STEP))
    assert signing_file(home).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (home / "keys").rglob("*") if path.is_file()) == [f"{ID}.pub", "signing.key"]


def test_a_private_key_is_for_its_owner_only_also_over_a_leftover(settings: Settings) -> None:
    leftover = signing_file(settings.home).with_name("signing.key.tmp")
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half of a k")
    leftover.chmod(0o666)
    write_private_key(signing_file(settings.home), PRIVATE)
    assert signing_file(settings.home).stat().st_mode & 0o777 == 0o600
    assert not leftover.exists()


def test_a_home_without_keys_is_refused_and_says_how_to_get_them(settings: Settings) -> None:
    with pytest.raises(InvalidSettings, match=r"millrace keys new --home .*home"):
        keyring_of(settings)
    with pytest.raises(InvalidSettings, match=r"signing\.key does not exist.*nothing can be published"):
        signer_of(settings)


def test_a_home_may_say_that_nobody_need_sign(settings: Settings) -> None:
    unsigned = settings.model_copy(update={"weights_unsigned": True})
    assert keyring_of(unsigned) is None
    assert signer_of(unsigned) is None
    write_private_key(signing_file(settings.home), PRIVATE)
    assert keyring_of(unsigned) is None
    assert signer(unsigned).key_id == ID


def test_a_replica_has_only_trusted_keys(settings: Settings) -> None:
    write_public_key(trusted_folder(settings.home), PRIVATE.public_key())
    keyring(settings).verify(Signer(PRIVATE).sign(STEP))
    with pytest.raises(InvalidSettings, match=r"signing\.key does not exist"):
        signer_of(settings)


def test_a_signer_that_would_be_refused_does_not_start(settings: Settings, home: Path) -> None:
    write_private_key(signing_file(home), OTHER)
    with pytest.raises(InvalidSettings, match=rf"{OTHER_ID}, which signs here, is not trusted here \(trusted: {ID}\)"):
        signer_of(settings)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o644, 0o610, 0o601, 0o777])
def test_a_private_key_that_others_can_use_is_refused(settings: Settings, home: Path, mode: int) -> None:
    signing_file(home).chmod(mode)
    with pytest.raises(InvalidSettings, match=rf"signing\.key can be used by others .*mode {mode:04o}.*chmod 600"):
        signer_of(settings)


def test_a_stricter_mode_is_fine(settings: Settings, home: Path) -> None:
    signing_file(home).chmod(0o400)
    assert signer(settings).key_id == ID


def private(key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, secret: str = "") -> bytes:
    encryption = BestAvailableEncryption(secret.encode()) if secret else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


CURVE = ec.derive_private_key(7, ec.SECP256R1())
NO_PRIVATE_KEYS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "holds no private key"),
    "cut": (private(PRIVATE)[:-30], "holds no private key"),
    "cut-inside": (private(PRIVATE)[:50] + private(PRIVATE)[60:], "holds no private key"),
    "garbage": (bytes(range(256)), "holds no private key"),
    "public": (public_pem(PRIVATE.public_key()), "holds no private key"),
    "der": (private(PRIVATE).splitlines()[1], "holds no private key"),
    "sealed": (private(PRIVATE, "secret"), "holds no private key .*without a password"),
    "curve": (private(CURVE), "holds a private key that is not an Ed25519 key"),
}


@pytest.mark.parametrize(("content", "says"), NO_PRIVATE_KEYS.values(), ids=NO_PRIVATE_KEYS)
def test_a_file_that_is_no_private_key_is_named_and_not_quoted(
    settings: Settings, home: Path, content: bytes, says: str
) -> None:
    signing_file(home).write_bytes(content)
    with pytest.raises(InvalidSettings, match=rf"signing\.key {says}") as refused:
        signer_of(settings)
    assert refused.value.__cause__ is None
    assert private(PRIVATE).splitlines()[1][:20].decode() not in refused.value.message


def test_a_folder_in_the_place_of_a_key_is_named(settings: Settings, home: Path) -> None:
    signing_file(home).unlink()
    signing_file(home).mkdir()
    with pytest.raises(InvalidSettings, match=r"signing\.key cannot be used: Is a directory"):
        signer_of(settings)


PUBLIC = public_pem(PRIVATE.public_key())
NO_PUBLIC_KEYS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not PEM text of public keys"),
    "cut": (PUBLIC[:-10], "not PEM text of public keys"),
    "cut-inside": (PUBLIC[:40] + PUBLIC[50:], "no public key in PEM"),
    "garbage": (bytes(range(256)), "not PEM text of public keys"),
    "words-behind": (PUBLIC + b"and more", "not PEM text of public keys"),
    "private": (private(PRIVATE), "holds a private key"),
    "certificate": (PUBLIC.replace(b"PUBLIC KEY", b"CERTIFICATE"), "no public key in PEM"),
    "curve": (CURVE.public_key().public_bytes(Encoding.PEM, Public.SubjectPublicKeyInfo), "not an Ed25519 key"),
    "another": (public_pem(OTHER.public_key()), "must hold only the key in its name"),
    "two": (PUBLIC + public_pem(OTHER.public_key()), "must hold only the key in its name"),
}


@pytest.mark.parametrize(("content", "says"), NO_PUBLIC_KEYS.values(), ids=NO_PUBLIC_KEYS)
def test_a_file_that_is_no_public_key_is_named(settings: Settings, home: Path, content: bytes, says: str) -> None:
    (trusted_folder(home) / f"{ID}.pub").write_bytes(content)
    with pytest.raises(InvalidSettings, match=rf"{ID}\.pub .*{says}"):
        keyring_of(settings)


def test_a_public_key_has_the_name_of_its_id_and_other_files_do_not_count(settings: Settings, home: Path) -> None:
    (trusted_folder(home) / "README").write_text("not a key")
    (trusted_folder(home) / f"{OTHER_ID}.pub.old").write_bytes(public_pem(OTHER.public_key()))
    assert keyring(settings).key_ids == (ID,)
    (trusted_folder(home) / "partner.pub").write_bytes(public_pem(OTHER.public_key()))
    with pytest.raises(InvalidSettings, match=r"partner\.pub is not named by a key's id"):
        keyring_of(settings)


def test_trust_and_retirement_count_at_once(settings: Settings, home: Path) -> None:
    held = keyring(settings)
    old, new = Signer(PRIVATE).sign(STEP), Signer(OTHER).sign(STEP)
    with pytest.raises(WeightsRefused, match=OTHER_ID):
        held.verify(new)
    write_public_key(trusted_folder(home), OTHER.public_key())
    held.verify(new)
    held.verify(old)
    assert move_to_retired(home, ID) == home / "keys" / "retired" / f"{ID}.pub"
    held.verify(new)
    with pytest.raises(WeightsRefused) as refused:
        held.verify(old)
    assert (refused.value.code, held.key_ids) == ("unknown_key", (OTHER_ID,))


def test_an_id_from_a_manifest_leads_nowhere_else(settings: Settings, home: Path) -> None:
    outside = home / "keys" / f"{OTHER_ID}.pub"
    outside.write_bytes(public_pem(OTHER.public_key()))
    led = msgspec.structs.replace(Signer(OTHER).sign(STEP), key=f"../{OTHER_ID}")
    with refused("unknown_key"):
        keyring(settings).verify(led)


def of_path(folder: Path, content: bytes) -> str:
    path = folder / "secret.key"
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


HANDED: dict[str, Callable[[Path, bytes], str]] = {
    "path": of_path,
    "text": lambda _, content: content.decode(),
    "escaped": lambda _, content: content.decode().strip().replace("\n", "\\n"),
}


@pytest.mark.parametrize("how", HANDED.values(), ids=HANDED)
def test_the_environment_stands_before_the_private_key_of_the_home(
    settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: Callable[[Path, bytes], str]
) -> None:
    write_public_key(trusted_folder(home), OTHER.public_key())
    monkeypatch.setenv(SIGNING_KEY, how(tmp_path, private_pem(OTHER)))
    assert signer(settings).key_id == OTHER_ID
    monkeypatch.setenv(SIGNING_KEY, "")
    assert signer(settings).key_id == ID


@pytest.mark.parametrize(
    "value", ["MC4CAQAwBQYDK2VwBCIEIAEB", "/nonexistent/secret", "x" * 5000, "-----BEGIN PRIVATE KEY-----"]
)
def test_a_variable_that_is_no_private_key_is_named_and_not_quoted(
    home: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(SIGNING_KEY, value)
    with pytest.raises(InvalidSettings, match=SIGNING_KEY) as refused:
        signing_key(home)
    assert value not in refused.value.message.replace("(-----BEGIN PRIVATE KEY-----)", "")


def test_a_mounted_private_key_that_others_can_read_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(of_path(tmp_path, private_pem(OTHER)))
    path.chmod(0o640)
    monkeypatch.setenv(SIGNING_KEY, str(path))
    with pytest.raises(InvalidSettings, match=r"secret\.key can be used by others"):
        signing_key(home)


def test_the_environment_stands_before_the_trusted_keys_of_the_home(
    settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(TRUSTED_KEYS, str(write_public_key(tmp_path / "mounted", OTHER.public_key()).parent))
    assert keyring(settings).key_ids == (OTHER_ID,)
    monkeypatch.setenv(TRUSTED_KEYS, "\n".join(public_pem(key.public_key()).decode() for key in (OTHER, PRIVATE)))
    assert keyring(settings).key_ids == tuple(sorted((ID, OTHER_ID)))
    keyring(settings).verify(Signer(OTHER).sign(STEP))
    monkeypatch.setenv(TRUSTED_KEYS, public_pem(OTHER.public_key()).decode().replace("\n", "\\n"))
    assert list(trusted_keys(home)) == [key_id_of(OTHER.public_key())]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("/nonexistent", "neither the path of a folder nor PEM"),
        (public_pem(OTHER.public_key()).decode()[:-12], "not PEM text of public keys"),
        (private_pem(OTHER).decode(), "holds a private key"),
        ("x" * 5000, "cannot be used"),
    ],
    ids=["nowhere", "cut", "private", "long"],
)
def test_a_variable_that_trusts_nobody_is_refused(
    settings: Settings, home: Path, monkeypatch: pytest.MonkeyPatch, value: str, says: str
) -> None:
    assert home.is_dir()
    monkeypatch.setenv(TRUSTED_KEYS, value)
    with pytest.raises(InvalidSettings, match=rf"{TRUSTED_KEYS} .*{says}"):
        keyring_of(settings)


def test_an_empty_mounted_folder_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(TRUSTED_KEYS, str(tmp_path))
    with pytest.raises(InvalidSettings, match=rf"there is none in the folder of {TRUSTED_KEYS}"):
        keyring_of(settings)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_folder_that_cannot_be_read_is_named(settings: Settings, home: Path) -> None:
    trusted_folder(home).chmod(0)
    try:
        with pytest.raises(InvalidSettings, match=r"trusted cannot be used: Permission denied"):
            keyring_of(settings)
    finally:
        trusted_folder(home).chmod(0o755)
