"""Signatures of everything that is published: Ed25519 over every field; and keys as PEM text. Pure; `weights.versions.keys` has the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from contracts.errors import InvalidSettings, WeightsRefused
from weights.versions.manifest import Manifest

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
KEY_ID_LENGTH = 16
_SHOWN = 40


def key_id_of(public_key: Ed25519PublicKey) -> str:
    """The name of a key: the first 16 hex digits of the blake3 of its 32 bytes."""
    return blake3(public_key.public_bytes_raw()).hexdigest()[:KEY_ID_LENGTH]


def signed_bytes(item: msgspec.Struct, kind: str = "manifest") -> bytes:
    """The bytes that a signature covers: the kind, and every field but the signature, the id of the key included."""
    return f"millrace-{kind}\n".encode() + msgspec.json.encode(msgspec.structs.replace(item, signature=None))


class Signer:
    """Signs with a private key."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key = private_key.public_key()
        self.key_id = key_id_of(self.public_key)

    def sign(self, item: _Struct, kind: str = "manifest") -> _Struct:
        """The item with this key's id and signature; earlier ones are replaced."""
        named = msgspec.structs.replace(item, key=self.key_id, signature=None)
        return msgspec.structs.replace(named, signature=self.sign_bytes(signed_bytes(named, kind)))

    def sign_bytes(self, message: bytes) -> str:
        """The signature, hex. A message begins with its kind, so a signed manifest is never accepted as another kind."""
        return self._private_key.sign(message).hex()


class Keyring:
    """The public keys that a receiver trusts, by id. All others are refused, also keys that were trusted before."""

    def __init__(self, public_keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._public_keys = public_keys

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the trusted keys, sorted."""
        return tuple(sorted(self._public_keys))

    def verify(self, manifest: Manifest) -> None:
        """Return only if a trusted key signed exactly this manifest.

        Raises WeightsRefused: `unsigned`, `unknown_key`, `bad_signature`; InvalidSettings: the file of that key is damaged.
        """
        name = f"the manifest of policy {manifest.policy!r} version {manifest.version}"
        self.verify_bytes(manifest.key, manifest.signature, signed_bytes(manifest), name=name)

    def verify_bytes(
        self, key_id: str | None, signature: str | None, message: bytes, *, name: str = "the object in the store"
    ) -> None:
        """As `verify`, for a message that `Signer.sign_bytes` signed; error messages call it `name`."""
        if key_id is None or signature is None:
            raise WeightsRefused("unsigned", f"{name} is not signed; trusted here: {self._trusted()}")
        public_key, shown = self._public_keys.get(key_id), key_id[:_SHOWN]
        if public_key is None:
            raise WeightsRefused(
                "unknown_key",
                f"{name} is signed with the key {shown!r}, which is not trusted here; trusted: {self._trusted()}. If it is "
                "your publisher's, give its .pub file to `millrace keys trust`",
                key=shown,
                trusted=self.key_ids,
            )
        if not _signed_by(public_key, message, signature):
            raise WeightsRefused(
                "bad_signature",
                f"{name} does not match the signature of the key {shown}: it was changed afterwards, or forged; nothing of it is used",
                key=shown,
            )

    def _trusted(self) -> str:
        return ", ".join(self.key_ids) or "none"


def _signed_by(public_key: Ed25519PublicKey, message: bytes, signature: str) -> bool:
    try:
        raw = bytes.fromhex(signature)
        public_key.verify(raw, message)
    except (InvalidSignature, ValueError):
        return False
    # Only one spelling is valid: fromhex also accepts capitals and blanks.
    return raw.hex() == signature


BEGIN = "-----BEGIN"
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)


def parse_private_key(text: str, where: str) -> Signer:
    """A private key from PEM. Raises InvalidSettings, which names `where` and never quotes the text."""
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Without the cause: it may quote the text.
        raise InvalidSettings(f"{where} holds no private key in PEM (PKCS 8, without a password)") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidSettings(f"{where} holds a private key that is not an Ed25519 key")
    return Signer(key)


def parse_public_keys(text: str, where: str) -> list[Ed25519PublicKey]:
    """One or more public keys from PEM texts, one after another. Raises InvalidSettings: there is other text, or no key."""
    if "PRIVATE KEY" in text:
        raise InvalidSettings(f"{where} holds a private key: only public keys (.pub) may be given to others")
    blocks = [found.group() for found in _BLOCK.finditer(text)]
    if not blocks or _BLOCK.sub("", text).strip():
        raise InvalidSettings(f"{where} is not PEM text of public keys (-----BEGIN PUBLIC KEY-----)")
    keys = []
    for block in blocks:
        try:
            key = load_pem_public_key(block.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidSettings(f"{where} holds no public key in PEM: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidSettings(f"{where} holds a public key that is not an Ed25519 key")
        keys.append(key)
    return keys


def private_pem(key: Ed25519PrivateKey) -> bytes:
    """A private key as PEM, for `parse_private_key`."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key: Ed25519PublicKey) -> bytes:
    """A public key as PEM, for `parse_public_keys`."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
