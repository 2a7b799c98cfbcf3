"""Keys as text: Ed25519 in PEM, private ones as PKCS 8 without a password. Pure."""

from __future__ import annotations

import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from contracts.errors import InvalidSettings
from weights.versions.signing import Signer

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
    """One or more public keys from PEM texts, one after another, with nothing else between them.

    Raises InvalidSettings: there is other text, or no key.
    """
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
