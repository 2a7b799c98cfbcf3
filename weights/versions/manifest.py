"""What vouches for a version: the signed manifest of one way to reach it. Pure.

A version can be reached in several ways, its edges: `step`, from its parent; `fold`, from an older version at once; `full`,
from nothing. All lead to the same root.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from contracts.errors import WeightsRefused

SCHEMA = 3
"""Of a manifest whose chunks lie under an epoch."""
OLDEST_SCHEMA = 2
"""Of every other: homes of before have no other, and their signatures stay what they are."""
CHUNK_BYTES = 8 * 2**20
"""The most that a chunk of a payload holds."""
NO_HISTORY = "0"
"""The history of a version that begins a cycle: no weight is known to have moved."""

Kind = Literal["step", "fold", "full"]


class Chunk(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A part of a payload, found by who wrote it and what it holds."""

    blake3: str
    num_bytes: int
    epoch: int = 0
    """Of the trainer that wrote it: what a trainer that lost its lease still writes lies where nobody looks. 0: none."""

    @property
    def name(self) -> str:
        """Its name among the chunks of a policy."""
        return f"e{self.epoch:06d}/{self.blake3}" if self.epoch else self.blake3


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a receiver checks before it touches a weight. JSON on disk; sizes in bytes, times UTC epoch seconds."""

    schema: int = OLDEST_SCHEMA
    policy: str
    run: str
    version: int
    parent: int | None
    base_version: int | None
    """The version the payload is a change of; None: it needs none."""
    base_root: str | None
    """`root_of` the base."""
    target_root: str
    codec: str
    history: str | None
    """The history the payload was coded with (see `weights.codec.history`); None: it was coded without."""
    history_after: str | None
    """The history of whoever applies it; None: it is not known any more."""
    chunks: tuple[Chunk, ...]
    """The payload, in order."""
    full_bytes: int
    num_changed: int
    """Weights whose bits differ from the base; all weights of a full copy."""
    num_weights: int
    created_at: float
    step: int
    """The trainer's optimizer step."""
    epoch: int
    num_samples: int
    """Samples learned since the parent."""
    key: str | None = None
    """Id of the key that signed; None: unsigned."""
    signature: str | None = None
    """Ed25519 over `signed_bytes`, hex."""

    @property
    def kind(self) -> Kind:
        """Which way this is."""
        if self.base_version is None:
            return "full"
        return "step" if self.base_version == self.parent else "fold"

    @property
    def payload_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.num_bytes for chunk in self.chunks)

    @property
    def density(self) -> float:
        """The fraction of weights whose bits changed since the base."""
        return self.num_changed / max(self.num_weights, 1)

    @property
    def ratio(self) -> float:
        """How many times smaller the payload is than the full weights."""
        return self.full_bytes / max(self.payload_bytes, 1)


class _Head(msgspec.Struct):
    schema: int


def signed_bytes(manifest: Manifest) -> bytes:
    """What a signature covers: everything but itself, the id of the key included."""
    return b"millrace-manifest\n" + msgspec.json.encode(msgspec.structs.replace(manifest, signature=None))


def parse_manifest(text: bytes) -> Manifest:
    """Read a manifest's JSON.

    Raises:
        WeightsRefused: `newer_schema`, `older_schema`, or `corrupt_manifest` naming the field.
    """
    try:
        check_schema(msgspec.json.decode(text, type=_Head).schema)
        return msgspec.json.decode(text, type=Manifest)
    # Deep nesting and bytes that are no UTF-8 are not always msgspec's own errors.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsRefused("corrupt_manifest", f"not a manifest: {error}") from error


def check_schema(schema: int) -> None:
    """Refuse (`newer_schema`, `older_schema`) what another Millrace wrote."""
    if schema > SCHEMA:
        raise WeightsRefused(
            "newer_schema", f"the manifest has schema {schema}, this process reads {SCHEMA}: upgrade it"
        )
    if schema < OLDEST_SCHEMA:
        raise WeightsRefused(
            "older_schema",
            f"the manifest has schema {schema}, this process reads {OLDEST_SCHEMA} to {SCHEMA}: publish the version again",
        )
