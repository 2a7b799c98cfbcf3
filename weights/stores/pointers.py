"""Where pointers lie: beside the versions, in a folder or in a bucket. Waits for: the disk, or the object store."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.errors import StaleWrite, Unavailable, WeightsRefused
from weights.files import make_folders_below, read_small, write_durably
from weights.stores.store import FolderWeightStore, WeightStore
from weights.versions.pointer import MOST_BYTES, PointerStore, Stored, pointer_path

if TYPE_CHECKING:
    from weights.stores.bucket import ObjectWeightStore


class FolderPointers(PointerStore):
    """In a folder on one disk, the root of a `FolderWeightStore`. Writers of a policy take turns; readers need no lock."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, policy: str, arm: str) -> Stored | None:
        """See `PointerStore.read`."""
        try:
            text = read_small(self._root, pointer_path(policy, arm), MOST_BYTES)
        except FileNotFoundError:
            return None
        except WeightsRefused as error:
            return Stored(b"", tag="", problem=error.message)
        return Stored(text, tag="")

    def replace(self, policy: str, arm: str, text: bytes, seen: Stored | None) -> None:
        """See `PointerStore.replace`."""
        folder, _, name = pointer_path(policy, arm).rpartition("/")
        path = make_folders_below(self._root, folder) / name
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = self.read(policy, arm)
            was_put_aside = found is None and seen is not None and seen.problem
            if found != seen and not was_put_aside:
                raise moved_elsewhere(policy, arm)
            write_durably(path, [text])
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error.strerror}", path=str(path)) from error
        finally:
            os.close(descriptor)


class ObjectPointers(PointerStore):
    """In a bucket of any store that keeps `If-Match` and `If-None-Match: *` on a write."""

    def __init__(self, store: ObjectWeightStore) -> None:
        # The pointers of a policy lie where its versions lie, behind the same client and the same words for its failures.
        self._objects = store.objects
        self._failures_named = store.failures_named

    def read(self, policy: str, arm: str) -> Stored | None:
        """See `PointerStore.read`."""
        import obstore  # noqa: PLC0415 embedded need not load the client

        try:
            with self._failures_named():
                found = obstore.get(self._objects, pointer_path(policy, arm))
                tag, text = found.meta["e_tag"] or "", bytearray()
                for piece in found.stream(min_chunk_size=MOST_BYTES):
                    text += piece
                    if len(text) > MOST_BYTES:
                        return Stored(
                            b"", tag, problem=f"{pointer_path(policy, arm)} is longer than {MOST_BYTES} bytes"
                        )
                return Stored(bytes(text), tag)
        except FileNotFoundError:
            return None

    def replace(self, policy: str, arm: str, text: bytes, seen: Stored | None) -> None:
        """See `PointerStore.replace`."""
        import obstore  # noqa: PLC0415 as above
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415

        path = pointer_path(policy, arm)
        with self._failures_named(), suppress(AlreadyExistsError, PreconditionError, FileNotFoundError):
            obstore.put(self._objects, path, text, mode="create" if seen is None else {"e_tag": seen.tag})
            return
        # A write that was repeated because its answer was lost meets itself.
        if (found := self.read(policy, arm)) is None or found.text != text:
            raise moved_elsewhere(policy, arm)


def pointers_of(store: WeightStore) -> PointerStore:
    """The pointers beside the versions of a store."""
    if isinstance(store, FolderWeightStore):
        return FolderPointers(store.root)
    from weights.stores.bucket import ObjectWeightStore  # noqa: PLC0415 as above

    if not isinstance(store, ObjectWeightStore):
        raise TypeError(f"{type(store).__name__} keeps no pointers")
    return ObjectPointers(store)


def moved_elsewhere(policy: str, arm: str) -> StaleWrite:
    """What to say to whoever came second."""
    return StaleWrite(f"the pointer {policy}/{arm} was moved by somebody else; read it again", policy=policy, arm=arm)
