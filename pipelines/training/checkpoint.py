"""Checkpoints: atomic folders, verified before they are believed, never a pickle.

In: weights, optimizer moments and state. Out: the same after a crash, or the newest older one that is whole. Waits: for
the disk: a checkpoint exists from the moment its manifest has its name, and everything else was synced before.

    checkpoint-<serial>/   weights.safetensors   float32 master weights
                           optimizer.safetensors AdamW moments by parameter name
                           state.json            TrainerState
                           MANIFEST.json         written last: sizes and blake3 of the others

Serials only rise and are never reused, also past folders that were refused.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import safetensors.torch
from blake3 import blake3
from safetensors import SafetensorError

from contracts.errors import Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.weights.files import make_folder_durably, write_durably
from pipelines.training.state import TrainerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    import torch

SCHEMA = 1
_PREFIX = "checkpoint-"
_MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Checkpoint:
    """The trainer's truth at one moment. `version` is set if these weights are a published version."""

    state: TrainerState
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    version: int | None = None


@dataclass(frozen=True)
class Refused:
    """A checkpoint that was not believed, and why."""

    name: str
    reason: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint contains."""

    schema: int = SCHEMA
    epoch: int
    step: int
    version: int | None
    files: dict[str, tuple[int, str]]
    """Name to size in bytes and blake3."""


class CheckpointStore:
    """Checkpoints in one folder."""

    def __init__(self, folder: Path, keep: int, fault: FaultPoint = no_fault) -> None:
        """`keep` newest checkpoints stay, and as many versions; `fault` is called before each visible change."""
        self._folder = folder
        self._keep = keep
        self._fault = fault
        make_folder_durably(folder)

    def save(self, checkpoint: Checkpoint, keep_versions: Collection[int] = ()) -> str:
        """Write durably, then forget what is no longer kept; returns the name.

        Raises:
            Unavailable: the disk is full; older checkpoints are untouched.
        """
        serial = max((int(name.removeprefix(_PREFIX)) for name in self._names()), default=0) + 1
        name = f"{_PREFIX}{serial:08d}"
        try:
            self._write(self._folder / name, checkpoint)
        except Unavailable:
            # What is left of it would keep the disk full, and users' signals out.
            shutil.rmtree(self._folder / name, ignore_errors=True)
            raise
        self._prune(keep_versions)
        return name

    def load_newest(
        self, check: Callable[[Checkpoint], None] = lambda _: None
    ) -> tuple[Checkpoint | None, list[Refused]]:
        """The newest checkpoint that verifies and that `check` lets pass, and those newer that were refused."""
        refused: list[Refused] = []
        for name in reversed(self._names()):
            try:
                checkpoint = self.load(name)
                check(checkpoint)
            except WeightsRefused as error:
                refused.append(Refused(name, f"{error.code}: {error.message}"))
            else:
                return checkpoint, refused
        return None, refused

    def load_version(self, version: int) -> Checkpoint:
        """The newest whole checkpoint of a published version.

        Raises:
            WeightsRefused: there is none.
        """
        for name in reversed(self._names()):
            try:
                if self._manifest(name).version == version:
                    return self.load(name)
            except WeightsRefused:
                continue
        kept = ", ".join(str(number) for number in sorted(self.versions()))
        raise WeightsRefused(
            "no_checkpoint", f"version {version} has no whole checkpoint here; kept are: {kept}", version=version
        )

    def load(self, name: str) -> Checkpoint:
        """Read and verify one checkpoint.

        Raises:
            WeightsRefused: something is missing, truncated or changed.
        """
        manifest = self._manifest(name)
        content = {file: self._verified(name, file, *facts) for file, facts in manifest.files.items()}
        try:
            return Checkpoint(
                state=msgspec.json.decode(content["state.json"], type=TrainerState),
                weights=safetensors.torch.load(content["weights.safetensors"]),
                optimizer=safetensors.torch.load(content["optimizer.safetensors"]),
                version=manifest.version,
            )
        except (KeyError, msgspec.MsgspecError, SafetensorError) as error:
            raise WeightsRefused("unreadable", f"{name} is whole but cannot be read: {error}") from error

    def versions(self) -> set[int]:
        """Published versions that have a checkpoint."""
        return {version for name in self._names() if (version := self._version_of(name)) is not None}

    def highest_epoch(self) -> int:
        """No checkpoint here, readable or not, has a higher epoch: each raises it by one at most. 0 if there is none."""
        readable, unreadable = 0, 0
        for name in self._names():
            try:
                readable = max(readable, self._manifest(name).epoch)
            except WeightsRefused:
                unreadable += 1
        return readable + unreadable

    def _write(self, folder: Path, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        content = {
            "weights.safetensors": safetensors.torch.save(checkpoint.weights),
            "optimizer.safetensors": safetensors.torch.save(checkpoint.optimizer),
            "state.json": msgspec.json.encode(state),
        }
        files = {file: (len(data), blake3(data).hexdigest()) for file, data in content.items()}
        manifest = Manifest(epoch=state.epoch, step=state.step, version=checkpoint.version, files=files)
        make_folder_durably(folder)
        for file, data in {**content, _MANIFEST: _seal(manifest)}.items():
            self._fault(f"checkpoint: before {file}")
            write_durably(folder / file, [data])
        self._fault("checkpoint: durable")

    def _manifest(self, name: str) -> Manifest:
        try:
            sealed = (self._folder / name / _MANIFEST).read_bytes()
        except FileNotFoundError:
            raise WeightsRefused("unfinished", f"{name} has no {_MANIFEST}: its writing was cut short") from None
        try:
            document: dict[str, Any] = json.loads(sealed)
            digest = document.pop("blake3")
            if document["schema"] > SCHEMA:
                raise WeightsRefused("newer_schema", f"{name} was written by a newer Millrace: upgrade this process")
            manifest = msgspec.convert(document, Manifest)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsRefused("damaged_manifest", f"{_MANIFEST} of {name} is damaged: {error}") from error
        if _seal(manifest) != sealed:
            raise WeightsRefused("damaged_manifest", f"{_MANIFEST} of {name} is not what was written ({digest})")
        return manifest

    def _verified(self, name: str, file: str, size: int, digest: str) -> bytes:
        try:
            data = (self._folder / name / file).read_bytes()
        except FileNotFoundError:
            raise WeightsRefused("missing_file", f"{name} lacks {file}") from None
        if len(data) != size:
            raise WeightsRefused("truncated", f"{file} of {name} has {len(data)} bytes, not {size}")
        if blake3(data).hexdigest() != digest:
            raise WeightsRefused("payload_hash", f"{file} of {name} is not what was written")
        return data

    def _prune(self, keep_versions: Collection[int]) -> None:
        names = self._names()
        # One per version, its newest: every restart saves the version it stands on once more.
        newest = {version: name for name in names if (version := self._version_of(name)) is not None}
        kept = {*names[-self._keep :], *sorted(newest.values())[-self._keep :]}
        kept |= {name for version, name in newest.items() if version in keep_versions}
        for name in set(names) - kept:
            shutil.rmtree(self._folder / name)

    def _version_of(self, name: str) -> int | None:
        try:
            return self._manifest(name).version
        except WeightsRefused:
            return None

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob(f"{_PREFIX}*"))


def _seal(manifest: Manifest) -> bytes:
    """The bytes of a manifest, with a hash of itself."""
    digest = blake3(msgspec.json.encode(manifest)).hexdigest()
    return json.dumps({**msgspec.to_builtins(manifest), "blake3": digest}, indent=1).encode()
