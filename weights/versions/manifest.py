"""The signed manifest of an edge: one way to reach a version. Pure.

A version has several edges: `step`, from its parent; `fold`, from an older version at once; `full`, from nothing. All lead to
the same root.
"""

from __future__ import annotations

from itertools import islice
from typing import Literal, TypeVar

import msgspec

from contracts.errors import WeightsRefused
from weights.tensors import root_of_leaves

SCHEMA = 4
"""The newest schema that is read, and that of a version of parts."""
EPOCH_SCHEMA = 3
"""The schema of a manifest without parts whose chunks are under an epoch."""
OLDEST_SCHEMA = 2
"""The schema of every other manifest: older homes have only these, and their signatures stay valid."""
CHUNK_BYTES = 8 * 2**20
NO_HISTORY = "0"
"""The digest of an empty history: no weight is known to have moved."""

Kind = Literal["step", "fold", "full"]
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class Chunk(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """A part of a payload, named by its writer and its content."""

    blake3: str
    num_bytes: int
    epoch: int = 0
    """The epoch of the trainer that wrote it: a trainer that lost its lease writes where nobody reads. 0: no trainer."""

    @property
    def name(self) -> str:
        """Its name among the chunks of a policy."""
        return f"e{self.epoch:06d}/{self.blake3}" if self.epoch else self.blake3


class Leaf(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a part, or one of its blocks of rows (`weights.blocks`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    """`digest_of`."""

    @property
    def entry(self) -> tuple[str, str, tuple[int, ...]]:
        """All but the digest."""
        return self.name, self.dtype, self.shape


class StoredPart(msgspec.Struct, frozen=True):
    """What one process encoded of a version: a payload of its own over its leaves."""

    num_chunks: int
    """Its payload: the chunks of the manifest behind those of the parts before it."""
    leaves: tuple[Leaf, ...]

    @property
    def root(self) -> str:
        """Of its leaves alone."""
        return root_of_leaves(msgspec.structs.astuple(leaf) for leaf in self.leaves)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a receiver checks before it changes a weight. JSON on disk; sizes in bytes, times UTC epoch seconds."""

    schema: int = OLDEST_SCHEMA
    policy: str
    run: str
    version: int
    parent: int | None
    base_version: int | None
    """The version that the payload is a change of; None: it needs no base."""
    base_root: str | None
    """`root_of` the base."""
    target_root: str
    codec: str
    history: str | None
    """Digest of the history that the payload was coded with (see `weights.codec.history`); None: it was coded without."""
    history_after: str | None
    """Digest of the receiver's history after it; None: the history is not known any more."""
    chunks: tuple[Chunk, ...]
    full_bytes: int
    num_changed: int
    """Weights whose bits differ from the base; all weights of a full copy."""
    num_weights: int
    created_at: float
    step: int
    epoch: int
    num_samples: int
    """Samples learned since the parent."""
    parts: tuple[StoredPart, ...] | msgspec.UnsetType = msgspec.UNSET
    """Each with a payload of its own; their leaves together are those of `target_root`. Unset: one payload over whole tensors."""
    key: str | None = None
    """Id of the key that signed; None: unsigned."""
    signature: str | None = None
    """Ed25519 over `signed_bytes`, hex."""

    @property
    def kind(self) -> Kind:
        """The kind of edge."""
        if self.base_version is None:
            return "full"
        return "step" if self.base_version == self.parent else "fold"

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Of all parts."""
        return tuple(leaf for part in self.parts or () for leaf in part.leaves)

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


def parse_struct(text: bytes, kind: type[_Struct], code: str, what: str) -> _Struct:
    """An object from JSON, not verified yet. Raises WeightsRefused: `code`, it is not `what`."""
    try:
        return msgspec.json.decode(text, type=kind)
    # Deep nesting and bytes that are not UTF-8 are not always msgspec's own errors.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsRefused(code, f"not a {what}: {error}") from error


def parse_manifest(text: bytes) -> Manifest:
    """Read a manifest's JSON. Raises WeightsRefused: `newer_schema`, `older_schema`, or `corrupt_manifest` naming the field."""
    check_schema(parse_struct(text, _Head, "corrupt_manifest", "manifest").schema)
    return parse_struct(text, Manifest, "corrupt_manifest", "manifest")


def check_schema(schema: int) -> None:
    """Raise WeightsRefused (`newer_schema`, `older_schema`) for a schema of another release."""
    if schema > SCHEMA:
        raise WeightsRefused(
            "newer_schema", f"the manifest has schema {schema}, this process reads {SCHEMA}: upgrade it"
        )
    if schema < OLDEST_SCHEMA:
        raise WeightsRefused(
            "older_schema",
            f"the manifest has schema {schema}, this process reads {OLDEST_SCHEMA} to {SCHEMA}: publish the version again",
        )


def edges_of_parts(manifest: Manifest) -> list[Manifest]:
    """An edge for each part, which leads to its leaves alone: its payload decodes as any other. Without parts: the manifest itself."""
    if manifest.parts is msgspec.UNSET:
        return [manifest]
    found, chunks = [], iter(manifest.chunks)
    for part in manifest.parts:
        own = tuple(islice(chunks, part.num_chunks))
        found.append(msgspec.structs.replace(manifest, target_root=part.root, chunks=own, parts=(part,)))
    return found
