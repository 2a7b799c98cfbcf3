"""Names of checkpoints: their epoch and order, what a manifest says, which are valid, and when one may be deleted. Without torch.

    checkpoint-000007-00000042   the 42nd, written under epoch 7 of the lease
    checkpoint-00000041          the 41st, written before leases existed

The newest has the highest (epoch, serial). A trainer that was paused and resumes has an older epoch than its successor, so its
checkpoints never count as newest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from blake3 import blake3

from contracts import assignments
from contracts.deletions import going
from contracts.errors import WeightsRefused
from contracts.files import read_small
from runtime.deletions import Deletions
from runtime.lease import IssuedEpoch, Lease, read_epochs

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from runtime.database import Database

SCHEMA = 1
MANIFEST, STATE, INDEX = "MANIFEST.json", "state.json", "weights.index.json"
WEIGHTS, MOMENTS = "weights.safetensors", "optimizer.safetensors"
NOTHING = ""
"""The start of an epoch that found no checkpoint."""
_JOURNAL = re.compile(r"journal-(\d{6,})")
_NAME = re.compile(r"checkpoint-(?:(\d{6,})-)?(\d{8,})")


class Name(NamedTuple):
    """Epoch and serial of a checkpoint; they sort by age. `epoch` is 0 for checkpoints older than leases."""

    epoch: int
    serial: int

    @property
    def text(self) -> str:
        """The name of the folder."""
        return f"checkpoint-{self.epoch:06d}-{self.serial:08d}" if self.epoch else f"checkpoint-{self.serial:08d}"


class Written(NamedTuple):
    """Size in bytes and blake3 of a file."""

    size: int
    digest: str


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint: facts of each file by name."""

    schema: int = SCHEMA
    epoch: int
    step: int
    version: int | None
    files: dict[str, Written]


class PieceIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows of weights and moments are that several processes wrote, each its own files."""

    shapes: dict[str, tuple[int, ...]]
    """Of the whole tensors, by name."""
    files: dict[str, dict[str, tuple[int, int]]]
    """File to the first row of each of its tensors, and the row behind the last."""


def piece_name(file: str, rank: int, world: int) -> str:
    """The file of a rank, for example `weights-00002-of-00004.safetensors` of rank 1; with one process the file itself."""
    stem, _, suffix = file.rpartition(".")
    return file if world == 1 else f"{stem}-{rank + 1:05d}-of-{world:05d}.{suffix}"


def parse_name(text: str) -> Name | None:
    """The parsed name; None if this is not the name of a checkpoint."""
    found = _NAME.fullmatch(text)
    return Name(int(found[1] or 0), int(found[2])) if found else None


def names_in(folder: Path) -> list[str]:
    """All checkpoints in a folder, the newest last."""
    names = (parse_name(path.name) for path in folder.glob("checkpoint-*"))
    return [name.text for name in sorted(name for name in names if name is not None)]


def journal_name(epoch: int) -> str:
    """The journal that the trainer of an epoch writes in the folder of a checkpoint."""
    return f"journal-{epoch:06d}"


def journal_epochs(paths: Iterable[Path]) -> list[int]:
    """The epochs of those paths that are journals."""
    return sorted(int(found[1]) for path in paths if (found := _JOURNAL.fullmatch(path.name)))


def highest_epoch(folder: Path) -> int:
    """An upper bound on the epochs of all checkpoints and journals here, readable or not; 0 for an empty folder.

    Before leases, each checkpoint raised the epoch by one at most: each unreadable one may have added one.
    """
    highest, unreadable = max(journal_epochs(folder.glob("checkpoint-*/journal-*")), default=0), 0
    for text in names_in(folder):
        name = parse_name(text)
        try:
            highest = max(highest, name.epoch if name and name.epoch else read_manifest(folder, text).epoch)
        except WeightsRefused:
            unreadable += 1
    return highest + unreadable


def void_names(names: Iterable[str], epochs: Mapping[int, IssuedEpoch]) -> set[str]:
    """Invalid checkpoints: of an epoch that was never issued, or newer than the checkpoint a later epoch started from.

    Epochs below the first issued one predate leases and are valid.
    """
    first = min(epochs, default=0)
    starts = [(epoch.epoch, parse_name(epoch.start)) for epoch in epochs.values() if epoch.start is not None]
    void = set()
    for text in names:
        if (name := parse_name(text)) is None:
            continue
        stranger = name.epoch > first and name.epoch not in epochs
        passed_over = any(name.epoch < epoch and (start is None or name > start) for epoch, start in starts)
        if stranger or passed_over:
            void.add(text)
    return void


def read_manifest(folder: Path, name: str) -> CheckpointManifest:
    """The verified manifest. Raises WeightsRefused: `unfinished`, `newer_schema` or `damaged_manifest`."""
    try:
        sealed = read_small(folder / name / MANIFEST)
    except FileNotFoundError:
        raise WeightsRefused("unfinished", f"{name} has no {MANIFEST}: the write was interrupted") from None
    except OSError as error:
        raise WeightsRefused("damaged_manifest", f"{MANIFEST} of {name} cannot be read: {error.strerror}") from error
    try:
        document: dict[str, Any] = json.loads(sealed)
        digest = document.pop("blake3")
        if document["schema"] > SCHEMA:
            raise WeightsRefused("newer_schema", f"{name} was written by a newer Millrace: upgrade this process")
        manifest = msgspec.convert(document, CheckpointManifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsRefused("damaged_manifest", f"{MANIFEST} of {name} is damaged: {error}") from error
    if seal(manifest) != sealed:
        raise WeightsRefused("damaged_manifest", f"{MANIFEST} of {name} does not match its checksum {digest}")
    return manifest


def seal(manifest: CheckpointManifest) -> bytes:
    """The bytes of a manifest, with its own checksum."""
    digest = blake3(msgspec.json.encode(manifest)).hexdigest()
    return json.dumps({**msgspec.to_builtins(manifest), "blake3": digest}, indent=1).encode()


class CheckpointFence:
    """Around the checkpoints of the lease's policy: the database knows epochs, starts, pending deletions, and versions of arms."""

    def __init__(self, lease: Lease, database: Database) -> None:
        self._database, self._policy = database, lease.policy
        self._deletions = Deletions(lease, lease.policy, "checkpoint")
        self.check = lease.check_now
        """Raises LeaseLost: another trainer has taken over; what was written since counts for nothing."""
        self.deleted = self._deletions.done
        """Names are deleted. They carry the epoch and are never used again."""

    def void(self, names: Collection[str]) -> set[str]:
        """Invalid names: of an epoch never issued, newer than the start of a successor, or about to be deleted."""
        with self._database.snapshot() as connection:
            epochs, gone = read_epochs(connection, self._policy), going(connection, self._policy, "checkpoint")
        return void_names(names, epochs) | gone

    def deletable(self, unneeded: Callable[[Collection[int]], Collection[str]]) -> list[str]:
        """Names that may be deleted now. `unneeded`: versions of the arms to names that nothing needs. Raises LeaseLost."""

        def unreferenced(connection: Connection) -> Collection[str]:
            # Read in the transaction that decides: an arm may move at any time.
            arms = assignments.read(connection, self._policy).values()
            return unneeded({arm.version for arm in arms if arm.version is not None})

        return self._deletions.advance(unreferenced)
