"""Published versions of policies, in a folder, in a bucket or behind a web server.

In: manifests and payloads. Out: the same, verified. Waits for: the place that holds the objects (`weights.stores.port`).

<root>/<policy>/chunks/e000007/<blake3>                       first: parts of payloads, by the epoch of the trainer that wrote
                                                              them (none: not from a trainer) and the hash of their bytes
<root>/<policy>/v000012/step.json full.json fold-000004.json  second: edges. A version exists from the moment its primary
                                                              edge does: `step`, or `full` if it has no parent

Publishers of a policy take turns in a folder. In a bucket they need not: chunks are named by their content, so a publisher that
comes second has overwritten nothing that the first one's manifest names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import msgspec

from contracts.errors import InvalidSettings, InvalidValue, NotFound, Unavailable, WeightsRefused
from weights.reader import WeightReader
from weights.stores.port import Objects
from weights.versions.layout import (
    EDGE,
    PRIMARIES,
    VERSION,
    Verifier,
    check_offer,
    check_same,
    chunk_folder,
    chunk_path,
    edge_name,
    edge_path,
    is_chunk,
    is_primary,
    parts_of,
    policy_folder,
    version_folder,
)
from weights.versions.manifest import Chunk, Manifest
from weights.versions.snapshot import ListedVersion

_PROBE = ".millrace-probe"


class StoredChunk(NamedTuple):
    """A chunk in the store; `written_at` in UTC epoch seconds, renewed when a publisher needs the chunk again."""

    name: str
    num_bytes: int
    written_at: float


class WeightStore(WeightReader):
    """Published versions of policies; edges never change. A place that lists nothing is asked for folds from `held` versions."""

    def __init__(
        self, objects: Objects, keyring: Verifier | None = None, held: Callable[[], Collection[int]] = tuple
    ) -> None:
        super().__init__(keyring, objects.connections)
        self.objects, self._held = objects, held

    def put_part(self, manifest: Manifest, payload: bytes) -> None:
        """Make the chunks of a part durable; nobody sees them before `publish` names them. Doing it again is a no-op.

        Raises WeightsRefused: the payload is another; Unavailable, InvalidSettings.
        """
        with self.objects.turn(policy_folder(manifest.policy)):
            list(self._each(lambda part: self._write_chunk(manifest.policy, *part, []), parts_of(manifest, payload)))

    def publish(self, manifest: Manifest, payload: bytes | None = None) -> None:
        """Make an edge durable, bytes first. Doing it again is a no-op, with any payload that leads to the same weights.

        Without a payload its chunks are there already, see `put_part`. A manifest in its place that is not believed is replaced, unless it is of another run. Raises Conflict: the version exists with
        other weights or another parent; InvalidValue: see `check_offer`, or a fold or full copy of a version that does not exist yet;
        Unavailable: the edge stays invisible, unless nobody could confirm its manifest: publishing again settles it; InvalidSettings: the
        store refuses the keys, is read only, or does not exist; WeightsRefused: the payload is another, or the keyring refuses.
        """
        check_offer(manifest, self._keyring)
        parts = [] if payload is None else parts_of(manifest, payload)
        path, text = edge_path(manifest), msgspec.json.format(msgspec.json.encode(manifest))
        with self.objects.turn(policy_folder(manifest.policy)) as is_alone:
            if self._is_published(manifest):
                # A publisher that was killed after it wrote the edge may not have made the name durable.
                self.objects.renew(path, len(text))
                return
            self._check_free(manifest)
            written: list[str] = []
            if payload is None:
                self._check_there(manifest)
            try:
                list(self._each(lambda part: self._write_chunk(manifest.policy, *part, written), parts))
                self._write_edge(manifest, text)
            except Unavailable:
                # Where publishers take no turns, another one may need these chunks by now.
                for leftover in (path, *written) if is_alone else ():
                    with suppress(Unavailable):
                        self.objects.delete(leftover)
                raise
            # The publisher whose manifest was stored wins.
            if not self._is_published(manifest):
                raise Unavailable(f"{self.objects.place} did not keep version {manifest.version}: publish it again")

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `WeightReader.chunk`."""
        path = chunk_path(policy, chunk.name)
        if start >= chunk.num_bytes:
            return b""
        if (content := self.objects.get_range(path, start, chunk.num_bytes)) is None:
            raise NotFound(f"chunk {chunk.blake3} of policy {policy!r} was removed from the store", chunk=chunk.blake3)
        return content

    def chunks(self, policy: str) -> list[StoredChunk]:
        """All chunks of a policy, needed or not, by name. Raises Unavailable."""
        folder = chunk_folder(policy)
        return sorted(
            StoredChunk(name, item.num_bytes, item.written_at)
            for item in self.objects.list_below(folder)
            if item.is_file and is_chunk(name := item.path.removeprefix(f"{folder}/"))
        )

    def remove_chunks(self, policy: str, names: Iterable[str], before: float) -> list[str]:
        """Remove chunks that were last written before a time, and what killed writers left; the names removed. Raises Unavailable."""
        with self.objects.turn(policy_folder(policy)) as is_alone:
            if is_alone:
                found = list(self.objects.list_below(chunk_folder(policy)))
                for leftover in (item.path for item in found if item.path.endswith(".tmp")):
                    self._remove(leftover, before)
            wanted = list(names)
            gone = self._each(lambda name: self._remove(chunk_path(policy, name), before), wanted)
            return [name for name, is_gone in zip(wanted, gone, strict=True) if is_gone]

    def read_small(self, path: str, most: int) -> bytes | None:
        """See `WeightReader.read_small`."""
        return self.objects.get(path, most)

    def write_small(self, path: str, text: bytes) -> None:
        """Write or replace an object at a path below the root, durably. Raises Unavailable, InvalidSettings."""
        self.objects.put(path, text)

    def update_small(self, path: str, most: int, change: Callable[[bytes | None], bytes | None]) -> bool:
        """Replace an object of at most `most` bytes by what `change` makes of it; False: somebody else replaced it meanwhile.

        `change` gets None if there is no object, no bytes if it is unreadable, and returns None to leave it. Raises Unavailable:
        the object may or may not have been replaced, so read it.
        """
        with self.objects.turn(path.rpartition("/")[0]):
            # The tag first: if the object is replaced before it is read, the tag is no longer right.
            found = self.objects.head(path)
            try:
                seen = None if found is None else self.objects.get(path, most)
            except WeightsRefused:
                seen = b""
            if (text := change(seen)) is None:
                return True
            if found is None:
                is_done = self.objects.put_if_absent(path, text)
            else:
                is_done = self.objects.put_if_unchanged(path, text, found.tag)
            # A write that was repeated because its answer was lost meets itself.
            return is_done or self.objects.get(path, most) == text

    def list_small(self, folder: str, most: int) -> list[str]:
        """Names of up to `most` objects in a folder, sorted. Raises Unavailable."""
        return sorted(item.path.rpartition("/")[2] for item in islice(self.objects.list_below(folder), most))

    def check(self) -> None:
        """See, with an empty object, that the store takes writes and overwrites none unasked. Raises InvalidSettings, Unavailable."""
        self.objects.put_if_absent(_PROBE, b"")
        if self.objects.put_if_absent(_PROBE, b""):
            raise InvalidSettings(
                f"{self.objects.place} ignores `If-None-Match: *`: two trainers could publish one version; use a store that "
                "keeps it"
            )

    def close(self) -> None:
        """Close connections."""
        self.objects.close()

    def _is_published(self, offered: Manifest) -> bool:
        policy, version = offered.policy, offered.version
        primary = self._primary(policy, version)
        if primary is not None:
            check_same(primary, offered)
        elif not is_primary(offered):
            raise InvalidValue(f"version {version} does not exist: publish its step first", param="version")
        if is_primary(offered):
            return primary is not None
        if not isinstance(edge := self._edge(policy, version, edge_name(offered)), Manifest):
            return False
        check_same(edge, offered)
        return True

    def _check_free(self, offered: Manifest) -> None:
        """Raises WeightsRefused: another run has the place, or another publisher has the policy. Nothing is written."""
        edge = self._edge(offered.policy, offered.version, edge_name(offered))
        taken = {"wrong_run", "unknown_key"} if offered.version == 0 else {"wrong_run"}
        if isinstance(edge, WeightsRefused) and edge.code in taken:
            raise edge

    def _check_there(self, manifest: Manifest) -> None:
        def is_there(chunk: Chunk) -> bool:
            return self.objects.renew(chunk_path(manifest.policy, chunk.name), chunk.num_bytes)

        if not all(self._each(is_there, manifest.chunks)):
            raise Unavailable(f"chunks of a part of version {manifest.version} are gone: publish its parts again")

    def _write_chunk(self, policy: str, chunk: Chunk, part: memoryview, written: list[str]) -> None:
        """Write a chunk unless it is there; `written` gets its path if there was nothing before."""
        path = chunk_path(policy, chunk.name)
        if not self.objects.renew(path, chunk.num_bytes):
            written.append(path)
            self.objects.put(path, part)

    def _write_edge(self, manifest: Manifest, text: bytes) -> None:
        """Write an edge: over one that is not believed, as long as it is still the same one; else only if there is none."""
        path = edge_path(manifest)
        found = self.objects.head(path)
        # Judged after its tag was taken: an edge that somebody else publishes meanwhile has another tag.
        edge = self._edge(manifest.policy, manifest.version, edge_name(manifest))
        if found is not None and isinstance(edge, WeightsRefused):
            self.objects.put_if_unchanged(path, text, found.tag)
        else:
            self.objects.put_if_absent(path, text)

    def _remove(self, path: str, before: float) -> bool:
        # A last look: a publisher may have found since that it needs this one.
        found = self.objects.head(path)
        if found is None or not found.is_file or found.written_at >= before:
            return False
        self.objects.delete(path)
        return True

    def _numbers(self, policy: str) -> list[int]:
        # Every version's folder begins with v. That is after the chunks, which are many.
        places = (item.path.split("/")[-2:] for item in self.objects.list_below(policy_folder(policy), after="v"))
        names = (VERSION.fullmatch(folder) for folder, file in places if file in PRIMARIES)
        return sorted({int(name[1]) for name in names if name})

    def _names(self, policy: str, version: int) -> list[str]:
        if self.objects.is_read_only:
            return self._usable_names(version)
        items = self.objects.list_below(version_folder(policy, version))
        return [name for item in items if EDGE.fullmatch(name := item.path.rpartition("/")[2])]

    def _listed_names(self, entry: ListedVersion | None) -> list[str]:
        names = super()._listed_names(entry)
        # Other folds are of no use to the caller, and each may be a round trip to the other side of the world.
        usable = self._usable_names() if self.objects.is_read_only else names
        return [name for name in names if name in usable]

    def _usable_names(self, version: float = math.inf) -> list[str]:
        return [*PRIMARIES, *(f"fold-{held:06d}.json" for held in sorted(set(self._held())) if held < version)]
