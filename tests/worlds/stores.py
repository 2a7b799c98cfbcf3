"""A store with honest versions, and every kind of junk that a thief with write access can put in the place of an object."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import obstore
from obstore.store import MemoryStore

from tests.worlds.versions import make_signer, publish_next
from weights.stores.bucket import BucketObjects
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors
from weights.versions.layout import Verifier
from weights.versions.manifest import Manifest
from weights.versions.signing import Signer

POLICY, RUN = "desk", "run-1"
NOW = 1_780_000_000.0


def signer(seed: int = 0) -> Signer:
    """A key pair that is always the same."""
    return make_signer(f"attack {seed}")


def weights_of(version: int) -> Tensors:
    """64 words that differ in every version."""
    words = np.random.default_rng(version).integers(0, 2**16, 64, dtype=np.uint16)
    return {"w": Tensor("BF16", (64,), words.view(np.uint8).copy())}


def publish(store: WeightStore, version: int, by: Signer, run: str = RUN) -> Manifest:
    """The version after the one before."""
    base = weights_of(version - 1) if version else None
    return publish_next(store, POLICY, version, base=base, target=weights_of(version), run=run, signer=by)


class StorePlace(Protocol):
    """A store's objects, as a holder of its credentials sees them. Paths are below the root."""

    def open(self, verifier: Verifier | None) -> WeightStore:
        """The store, opened with this verifier; None: every manifest is believed."""

    def put(self, path: str, content: bytes) -> None:
        """Write an object."""

    def get(self, path: str) -> bytes | None:
        """Read an object; None if it does not exist."""

    def remove(self, path: str) -> None:
        """Delete an object."""

    def files(self) -> dict[str, bytes]:
        """All objects by their paths."""


class Folder(StorePlace):
    """On a disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, verifier: Verifier | None) -> WeightStore:
        """The store, opened with this verifier."""
        return open_store_at(self.root, verifier)

    def put(self, path: str, content: bytes) -> None:
        """Write an object."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)

    def get(self, path: str) -> bytes | None:
        """Read an object; None if it does not exist."""
        place = self.root / path
        return place.read_bytes() if place.is_file() else None

    def remove(self, path: str) -> None:
        """Delete an object."""
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink(missing_ok=True)

    def files(self) -> dict[str, bytes]:
        """All objects by their paths."""
        found = (path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}


class BucketPlace(StorePlace):
    """In an object store, here in memory behind the real client."""

    def __init__(self) -> None:
        self.objects = MemoryStore()

    def open(self, verifier: Verifier | None) -> WeightStore:
        """The store, opened with this verifier."""
        return WeightStore(BucketObjects(self.objects, "memory"), verifier)

    def put(self, path: str, content: bytes) -> None:
        """Write an object."""
        obstore.put(self.objects, path, content)

    def get(self, path: str) -> bytes | None:
        """Read an object; None if it does not exist."""
        try:
            return bytes(obstore.get(self.objects, path).bytes())
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        """Delete an object."""
        obstore.delete(self.objects, path)

    def files(self) -> dict[str, bytes]:
        """All objects by their paths."""
        paths = [item["path"] for page in obstore.list(self.objects) for item in page]
        return {path: bytes(obstore.get(self.objects, path).bytes()) for path in paths}


class Junk(NamedTuple):
    """One kind of junk in the place of an object."""

    name: str
    plant: Callable[[StorePlace, str], bool]
    """Replaces the object at a path with it; False: this store cannot hold it."""


_BYTES = {
    "empty": b"",
    "braces": b"{}",
    "a list": b"[]",
    "nested deeply": b"[" * 100_000,
    "objects nested deeply": b'{"name":' * 50_000,
    "not UTF-8": b'{"name": "\xff\xfe", "policy": "\x80"}',
    "wrong types": b'{"schema": 2, "policy": 7, "name": [], "version": "x", "at": {}, "epoch": null, "arm": 1, "run": 2}',
    "huge numbers": b'{"schema": 1e400, "name": "eu", "version": 1e999, "history": null, "at": 1e999, "epoch": '
    + b"9" * 5000
    + b"}",
    "far too long": b" " * 2**17,
    "cut short": b'{"schema": 2, "pol',
    "zeros": bytes(4096),
}


def junk(outside: Path) -> Iterator[Junk]:
    """Every kind; `outside` is a folder beside the store, for links to lead to."""
    for name, content in _BYTES.items():
        yield Junk(name, _bytes(content))
    (outside / "other.json").write_bytes(b"{}")
    yield Junk("1 GiB", _special(_sparse))
    yield Junk("a pipe", _special(os.mkfifo))
    yield Junk("a folder", _special(lambda path: path.mkdir()))
    yield Junk("a socket", _special(_socket))
    for name, target in (
        ("a link to endless zeros", "/dev/zero"),
        ("a link to itself", ""),
        ("a link out of the store", str(outside / "other.json")),
        ("a link to nothing", str(outside / "nothing.json")),
        ("a link to a terminal", "/dev/tty"),
    ):
        yield Junk(name, _special(_link(target)))


def _bytes(content: bytes) -> Callable[[StorePlace, str], bool]:
    def plant(place: StorePlace, path: str) -> bool:
        place.remove(path)
        place.put(path, content)
        return True

    return plant


def _special(make: Callable[[Path], object]) -> Callable[[StorePlace, str], bool]:
    def plant(place: StorePlace, path: str) -> bool:
        if not isinstance(place, Folder):
            return False
        (place.root / path).parent.mkdir(parents=True, exist_ok=True)
        place.remove(path)
        make(place.root / path)
        return True

    return plant


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target or path.name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


def _socket(path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    try:
        os.chdir(path.parent)  # an address has at most 108 bytes
        listening.bind(path.name)
    finally:
        os.chdir(here)
        listening.close()
