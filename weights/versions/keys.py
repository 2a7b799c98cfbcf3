"""Reads and writes key files. In: a home's folder, or the environment. Out: the `Signer` and the `Keyring` of trusted keys.

<home>/keys/signing.key         signs what this home publishes; PEM (PKCS 8), readable by its owner only
<home>/keys/next.key            the key that `millrace keys rotate` will switch to, while others learn to trust it
<home>/keys/trusted/<id>.pub    keys whose versions this home accepts; PEM, named by the key's id
<home>/keys/retired/<id>.pub    keys that are no longer trusted; nothing reads them
<home>/keys/replicas/<id>.pub   keys of replicas whose reported progress a publisher trusts
<folder>/keys/replica.key       signs a replica's own reports; <folder>/keys/<id>.pub is its public half
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from contracts.errors import InvalidSettings
from weights.files import full_disk_named, make_folder_durably, sync_folder, write_durably
from weights.versions.signing import (
    BEGIN,
    KEY_ID_LENGTH,
    Keyring,
    Signer,
    key_id_of,
    parse_private_key,
    parse_public_keys,
    private_pem,
    public_pem,
)

SIGNING_KEY = "MILLRACE_SIGNING_KEY"
"""The private key if it is not in the home: a path, or the PEM text itself."""
TRUSTED_KEYS = "MILLRACE_TRUSTED_KEYS"
"""The trusted public keys if they are not in the home: the path of a folder, or PEM texts one after another."""
_KEY_ID = re.compile(rf"[0-9a-f]{{{KEY_ID_LENGTH}}}")
_ANYBODY_ELSE = 0o077


class KeySettings(Protocol):
    """The settings of a home that concern its keys."""

    @property
    def home(self) -> Path:
        """The folder that has `keys/`."""

    @property
    def weights_unsigned(self) -> bool:
        """True: unsigned versions are accepted."""


def keyring_of(settings: KeySettings) -> Keyring | None:
    """The keys whose versions this home accepts, also later ones; None: everybody's (`weights_unsigned`). Raises InvalidSettings."""
    if settings.weights_unsigned:
        return None
    trusted = trusted_keys(settings.home)
    if not trusted:
        looked_in = f"{trusted_folder(settings.home)}, and {TRUSTED_KEYS} is not set"
        if os.environ.get(TRUSTED_KEYS):
            looked_in = f"the folder of {TRUSTED_KEYS}"
        raise InvalidSettings(
            f"no key is trusted (there is none in {looked_in}), so no version can be accepted: `millrace keys new --home {settings.home}` makes a "
            f"pair, `millrace keys trust FILE --home {settings.home}` adds the key of a publisher elsewhere. With "
            "weights_unsigned = true in [millrace] anybody who can write to the weight store decides what is served"
        )
    return Keyring(trusted)


def signer_of(settings: KeySettings) -> Signer | None:
    """The key that signs what this home publishes; None: no signature is needed. Raises InvalidSettings: none, unsafe, or not trusted."""
    signer = signing_key(settings.home)
    if settings.weights_unsigned:
        return signer
    if signer is None:
        raise InvalidSettings(
            f"{signing_file(settings.home)} does not exist and {SIGNING_KEY} is not set, so nothing can be published here: "
            f"bring the private key of this policy's publisher, or make one with `millrace keys new --home {settings.home}`"
        )
    trusted = trusted_keys(settings.home)
    if signer.key_id not in trusted:
        raise InvalidSettings(
            f"the key {signer.key_id}, which signs here, is not trusted here (trusted: {', '.join(trusted) or 'none'}), so what "
            "it signs would be refused: give its public half to `millrace keys trust`, or sign with a trusted key"
        )
    return signer


def signing_file(home: Path) -> Path:
    """The file of a home's private key."""
    return home / "keys" / "signing.key"


def next_file(home: Path) -> Path:
    """The file of the next private key, between the two halves of a rotation."""
    return home / "keys" / "next.key"


def trusted_folder(home: Path) -> Path:
    """The folder of the public keys that a home trusts."""
    return home / "keys" / "trusted"


def replicas_folder(home: Path) -> Path:
    """The folder of replicas' public keys, in their publisher's home."""
    return home / "keys" / "replicas"


def replica_keyring(home: Path) -> Keyring:
    """The keys of replicas that a publisher trusts; empty: every report is only a hint. Raises InvalidSettings."""
    return Keyring(_checked(replicas_folder(home)))


def replica_signer(folder: Path) -> tuple[Signer, Path]:
    """A replica's own key, made at its first start, and the file of its public half. Raises InvalidSettings."""
    path = folder / "keys" / "replica.key"
    if (signer := read_private_key(path)) is None:
        key = Ed25519PrivateKey.generate()
        write_private_key(path, key)
        signer = Signer(key)
    public = folder / "keys" / f"{signer.key_id}.pub"
    return signer, public if public.exists() else write_public_key(folder / "keys", signer.public_key)


def signing_key(home: Path) -> Signer | None:
    """The private key from the environment, else the home's; None: there is neither. Raises InvalidSettings."""
    told = os.environ.get(SIGNING_KEY)
    if not told:
        return read_private_key(signing_file(home))
    if BEGIN in told:
        return parse_private_key(_unescaped(told), SIGNING_KEY)
    # If it isn't a path, it may be a pasted secret: never log it.
    with _usable(SIGNING_KEY):
        is_file = Path(told).is_file()
    if not is_file:
        raise InvalidSettings(f"{SIGNING_KEY} is neither the path of a file nor PEM text (-----BEGIN PRIVATE KEY-----)")
    return read_private_key(Path(told))


def trusted_keys(home: Path) -> Mapping[str, Ed25519PublicKey]:
    """The trusted keys from the environment, else the home's, by id; each was read once. Raises InvalidSettings."""
    if (told := os.environ.get(TRUSTED_KEYS)) and BEGIN in told:
        return {key_id_of(key): key for key in parse_public_keys(_unescaped(told), TRUSTED_KEYS)}
    if told:
        with _usable(TRUSTED_KEYS):
            is_folder = Path(told).is_dir()
        if not is_folder:
            raise InvalidSettings(
                f"{TRUSTED_KEYS} is neither the path of a folder nor PEM texts (-----BEGIN PUBLIC KEY-----)"
            )
    return _checked(Path(told) if told else trusted_folder(home))


class TrustedFolder(Mapping[str, Ed25519PublicKey]):
    """The keys of a folder, read when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, key_id: str) -> Ed25519PublicKey:
        # Ids come from manifests that are not verified yet: they must not lead out of the folder.
        if not _KEY_ID.fullmatch(key_id):
            raise KeyError(key_id)
        path = self._folder / f"{key_id}.pub"
        with _usable(str(path)):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                raise KeyError(key_id) from None
        key, *others = parse_public_keys(text.decode("latin-1"), str(path))
        if others or key_id_of(key) != key_id:
            raise InvalidSettings(
                f"{path} must hold only the key in its name; the name of its first key is {key_id_of(key)}.pub"
            )
        return key

    def __iter__(self) -> Iterator[str]:
        return filter(_KEY_ID.fullmatch, self._stems())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def check(self) -> None:
        """Read every key. Raises InvalidSettings for a .pub file that is not a key, or not the key in its name."""
        for stem in self._stems():
            if not _KEY_ID.fullmatch(stem):
                raise InvalidSettings(
                    f"{self._folder / stem}.pub is not named by a key's id; add keys with `millrace keys trust FILE`"
                )
            self[stem]

    def _stems(self) -> list[str]:
        with _usable(str(self._folder)):
            try:
                names = [path.name for path in self._folder.iterdir()]
            except FileNotFoundError:
                return []
        return sorted(name.removesuffix(".pub") for name in names if name.endswith(".pub"))


def read_private_key(path: Path) -> Signer | None:
    """The private key of a file; None: there is no file. Raises InvalidSettings: it is no Ed25519 key, or others can read it."""
    with _usable(str(path)):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        with file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read()
    if mode & _ANYBODY_ELSE:
        raise InvalidSettings(
            f"{path} can be used by others than its owner (mode {mode:04o}): anybody who read it can sign versions. Run chmod 600 {path}; if "
            f"somebody may have read it, then also make another key with `millrace keys rotate`"
        )
    return parse_private_key(text.decode("latin-1"), str(path))


def read_public_keys(path: Path) -> list[Ed25519PublicKey]:
    """The public keys of a file, one or more. Raises InvalidSettings."""
    with _usable(str(path)):
        text = path.read_bytes()
    return parse_public_keys(text.decode("latin-1"), str(path))


def write_private_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key to `path`, atomically, readable by its owner only. Raises InvalidSettings, Unavailable."""
    _write(path, private_pem(key))


def write_public_key(folder: Path, key: Ed25519PublicKey) -> Path:
    """Write a public key into a folder, named by its id; returns the file. Raises InvalidSettings, Unavailable."""
    path = folder / f"{key_id_of(key)}.pub"
    _write(path, public_pem(key))
    return path


def make_next_current(home: Path) -> None:
    """Replace the current private key by the next one; the old one is gone. Raises InvalidSettings."""
    path = signing_file(home)
    with _usable(str(path)):
        next_file(home).replace(path)
        sync_folder(path.parent)


def move_to_retired(home: Path, key_id: str) -> Path:
    """Stop trusting a key; returns its new file. Raises InvalidSettings."""
    path = home / "keys" / "retired" / f"{key_id}.pub"
    with _usable(str(path)), full_disk_named(path):
        make_folder_durably(path.parent)
        (trusted_folder(home) / path.name).replace(path)
        sync_folder(trusted_folder(home))
        sync_folder(path.parent)
    return path


def _checked(folder: Path) -> TrustedFolder:
    found = TrustedFolder(folder)
    found.check()
    return found


def _write(path: Path, text: bytes) -> None:
    with _usable(str(path)):
        make_folder_durably(path.parent)
        write_durably(path, [text], mode=0o600)


def _unescaped(text: str) -> str:
    r"""Environment variables without line breaks have \n instead; PEM contains neither character."""
    return text.replace("\\n", "\n")


@contextmanager
def _usable(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidSettings(f"{where} cannot be used: {error.strerror}") from error
