"""Looks for a text in every file of a folder: as it is, in SQLite's tables, pages and WAL, and in compressed bodies. Pure reading."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

_ZSTD = b"\x28\xb5\x2f\xfd"
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b")
_SQLITE = b"SQLite format 3\0"
_MOST_BYTES = 64 * 2**20
_DEEPEST = 3


def traces(folder: Path, text: str) -> list[str]:
    """Every place where the text occurs: a file, or a table and column in it."""
    found = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(file.relative_to(folder))
        if text in name:
            found.append(f"the name of {name}")
        content = file.read_bytes()
        if holds(content, text):
            found.append(name)
        if content.startswith(_SQLITE):
            found += [f"{name}: {place}" for place in _in_tables(file, text)]
    return found


def holds(content: bytes, text: str) -> bool:
    """Whether bytes have a text in them, however they were encoded and packed."""
    wanted = {text.encode(), text.encode("utf-16-le"), json.dumps(text)[1:-1].encode(), text.encode().hex().encode()}
    return any(needle in plain for plain in _unpacked(content) for needle in wanted)


def _unpacked(content: bytes, depth: int = 0) -> Iterator[bytes]:
    yield content
    if depth == _DEEPEST:
        return
    for place in _places(content, (_ZSTD,)):
        # Of a body that goes over several pages of a file the beginning is read: rows are read whole elsewhere.
        plain = _as_far_as_it_goes(zstandard.ZstdDecompressor().decompressobj(), content[place:])
        yield from _unpacked(plain, depth + 1) if plain else ()
    for place in _places(content, _ZLIB):
        plain = _as_far_as_it_goes(zlib.decompressobj(wbits=47), content[place : place + _MOST_BYTES])
        yield from _unpacked(plain, depth + 1) if plain else ()


def _places(content: bytes, magics: tuple[bytes, ...]) -> Iterator[int]:
    for magic in magics:
        place = content.find(magic)
        while place >= 0:
            yield place
            place = content.find(magic, place + 1)


def _as_far_as_it_goes(opener: object, packed: bytes) -> bytes:
    """What can be opened before the bytes are something else."""
    plain = b""
    for start in range(0, min(len(packed), _MOST_BYTES), 256):
        try:
            plain += opener.decompress(packed[start : start + 256])  # type: ignore[attr-defined] # both kinds have it
        except (zstandard.ZstdError, zlib.error, EOFError):
            break
        if getattr(opener, "eof", False) or len(plain) > _MOST_BYTES:
            break
    return plain


def _in_tables(file: Path, text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as copies:
        copy = Path(copies) / "copy.db"
        shutil.copy(file, copy)
        for suffix in ("-wal", "-shm"):
            if (beside := Path(f"{file}{suffix}")).exists():
                shutil.copy(beside, f"{copy}{suffix}")
        connection = sqlite3.connect(copy)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            rows = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 names of its own tables
            columns = [column[0] for column in rows.description]
            hits = {
                column for row in rows for column, value in zip(columns, row, strict=True)
                if holds(value if isinstance(value, bytes) else str(value).encode(), text)
            }  # fmt: skip
            yield from (f"{table}.{column}" for column in sorted(hits))
        connection.close()
