"""Whole versions on a replica's disk, and the file that names the one that is served.

In: verified tensors. Out: the same tensors, memory-mapped, verified again. Waits for: the disk.

<folder>/slots/000012-0a1b2c3d4e5f/model.safetensors   first
                                   history.bin         second, if the history is known
                                   manifest.json       third: its signed manifest
                                   held.json           last: a slot without it is incomplete
<folder>/current                                       the slot that is served and the one before it, replaced atomically
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from contracts.errors import NotFound, WeightsRefused
from contracts.faults import FaultPoint
from weights.blocks import root_as
from weights.codec.history import History
from weights.files import make_folder_durably, read_small, write_durably
from weights.mapped import map_safetensors
from weights.tensors import SINGLE_FILE, Tensors
from weights.versions.manifest import NO_HISTORY, parse_manifest

SCHEMA = 1
_LABEL = "held.json"
_HISTORY = "history.bin"
_MANIFEST = "manifest.json"
_MOST_BYTES = 2**26
_ROOT_LETTERS = 12
_SLOT = re.compile(rf"\d{{6,}}-[0-9a-f]{{{_ROOT_LETTERS}}}")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Deep nesting and bytes that are not UTF-8 are not always msgspec's own errors."""


class Slot(NamedTuple):
    """A complete version on this disk."""

    version: int
    root: str
    history: str
    """Digest of its history; `NO_HISTORY`: unknown or empty."""
    run: str


class OpenSlot(NamedTuple):
    """The content of a slot."""

    tensors: Tensors
    history: History


class _Label(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    policy: str
    run: str
    version: int
    root: str
    history: str


class _Current(msgspec.Struct, frozen=True):
    slot: str
    before: str | None


class Slots:
    """The slots of one policy in one folder. `refused` collects damage that was found, newest last."""

    def __init__(self, folder: Path, policy: str, fault: FaultPoint) -> None:
        self._folder, self._policy, self._fault = folder, policy, fault
        self.refused: list[WeightsRefused] = []
        make_folder_durably(folder / "slots")

    @property
    def current(self) -> Slot | None:
        """The slot that is served; not verified yet."""
        return self._label(pointed.slot) if (pointed := self._current()) else None

    def held(self) -> list[Slot]:
        """Every complete slot: the served one first, then the one before it, then by version. Not verified yet."""
        names = sorted((path.name for path in (self._folder / "slots").iterdir()), reverse=True)
        first = self._pointed()
        ordered = [name for name in first if name in names] + [name for name in names if name not in first]
        return [held for name in ordered if (held := self._label(name)) is not None]

    def open(self, held: Slot) -> OpenSlot:
        """The tensors of a slot, memory-mapped and read-only, and its history, both verified.

        Raises WeightsRefused: `slot_damaged`, the bytes on the disk have changed: the slot is removed.
        `history_damaged`: the slot stays, and from now on its history is unknown.
        """
        place = self._place(held)
        try:
            tensors = map_safetensors(self.model_of(held))
            root = root_as(tensors, held.root, in_parts=self._is_in_parts(held))
            reason = None if root == held.root else f"its tensors add up to {root}"
        except (NotFound, WeightsRefused) as error:
            reason = error.message
        if reason is not None:
            self.drop(held)
            raise self.refuse("slot_damaged", f"version {held.version} in {place} is not what was written ({reason})")
        return OpenSlot(tensors, self._history(held))

    def _is_in_parts(self, held: Slot) -> bool:
        with suppress(WeightsRefused):
            return bool(parse_manifest(self.manifest_of(held) or b"").leaves)
        return False

    def _history(self, held: Slot) -> History:
        if held.history == NO_HISTORY:
            return History()
        path = self._place(held) / _HISTORY
        try:
            history = History.from_bytes(path.read_bytes())
            reason = None if history.digest == held.history else f"its digest is {history.digest}"
        except FileNotFoundError:
            reason = "it is gone"
        except WeightsRefused as error:
            reason = error.message
        if reason is not None:
            self._write_label(held._replace(history=NO_HISTORY))
            raise self.refuse("history_damaged", f"{path} is not what was written ({reason})")
        return history

    def refuse(self, code: str, what: str) -> WeightsRefused:
        """The error for a damaged slot; it is added to `refused`."""
        refused = WeightsRefused(code, f"{what}; check this disk")
        self.refused.append(refused)
        return refused

    def manifest_of(self, held: Slot) -> bytes | None:
        """The manifest that was stored with a slot; None: there is none that can be read, as in slots of earlier releases."""
        try:
            return read_small(self._place(held), _MANIFEST, _MOST_BYTES)
        except (FileNotFoundError, WeightsRefused):
            return None

    def keep_manifest(self, held: Slot, text: bytes) -> None:
        """Store the manifest of a slot."""
        write_durably(self._place(held) / _MANIFEST, [text])

    def model_of(self, held: Slot) -> Path:
        """The file of a slot's tensors."""
        return self._place(held) / SINGLE_FILE

    def begin(self, held: Slot) -> Path:
        """Make an empty slot; returns the path for its model."""
        self.drop(held)
        make_folder_durably(self._place(held))
        return self.model_of(held)

    def add(self, held: Slot, history: History, manifest: bytes) -> None:
        """Write what a slot has beside its model."""
        if held.history != NO_HISTORY:
            self._fault("slot: before history.bin")
            write_durably(self._place(held) / _HISTORY, [history.to_bytes()])
        self.keep_manifest(held, manifest)

    def finish(self, held: Slot) -> None:
        """Complete a slot whose files are durable."""
        self._fault("slot: before held.json")
        self._write_label(held)
        self._fault("slot: whole")

    def flip(self, held: Slot) -> None:
        """Serve a complete slot; the one served until now becomes the one before."""
        name = _name(held)
        before = next((other for other in self._pointed() if other != name), None)
        self._fault("flip: before current")
        write_durably(self._folder / "current", [msgspec.json.encode(_Current(name, before))])
        self._fault("flip: after current")

    def sweep(self) -> None:
        """Remove all but the served slot and the one before it."""
        kept = self._pointed()
        for path in sorted((self._folder / "slots").iterdir()):
            if path.name not in kept:
                self._fault("sweep: before a slot")
                self._remove(path)

    def drop(self, held: Slot) -> None:
        """Remove one slot, if it is there."""
        self._remove(self._place(held))

    def _remove(self, slot: Path) -> None:
        # The label is removed first: an interrupted removal must not leave a slot that looks complete.
        (slot / _LABEL).unlink(missing_ok=True)
        shutil.rmtree(slot, ignore_errors=True)

    def _write_label(self, held: Slot) -> None:
        label = _Label(policy=self._policy, **held._asdict())
        write_durably(self._place(held) / _LABEL, [msgspec.json.encode(label)])

    def _place(self, held: Slot) -> Path:
        return self._folder / "slots" / _name(held)

    def _pointed(self) -> list[str]:
        return [name for name in (pointed.slot, pointed.before) if name] if (pointed := self._current()) else []

    def _current(self) -> _Current | None:
        # A damaged file counts as absent: then any complete slot may be served, because each has its own manifest.
        try:
            found = msgspec.json.decode((self._folder / "current").read_bytes(), type=_Current)
        except (FileNotFoundError, *_UNREADABLE):
            return None
        is_named = _SLOT.fullmatch(found.slot) and (found.before is None or _SLOT.fullmatch(found.before))
        return found if is_named else None

    def _label(self, name: str) -> Slot | None:
        try:
            label = msgspec.json.decode((self._folder / "slots" / name / _LABEL).read_bytes(), type=_Label)
        except (FileNotFoundError, NotADirectoryError, *_UNREADABLE):
            return None
        held = Slot(label.version, label.root, label.history, label.run)
        return held if (label.schema, label.policy, name) == (SCHEMA, self._policy, _name(held)) else None


def _name(held: Slot) -> str:
    return f"{held.version:06d}-{held.root[:_ROOT_LETTERS]}"
