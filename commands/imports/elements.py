"""The JSON values of an export, one at a time, in bounded memory.

    file or standard input ─▶ opened(): a file of UTF-8 ─▶ elements(): JSON lines, or the members of one long array

In: bytes. Out: each value with the place where it ends. Waits for: reads. An API dump, `{"data": [...]}`, is its members. A value that is too
long is passed over in pieces; a line that is not UTF-8 is read as Latin-1.
"""

from __future__ import annotations

import codecs
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from contracts.errors import InvalidSettings

MAX_ELEMENT_BYTES = 8 * 2**20
"""Of one value; a record of the log is far smaller."""
_CHUNK = 2**20
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_GZIP = b"\x1f\x8b"
_DUMP = re.compile(rb'\s*\{\s*(?:"\w+"\s*:\s*(?:"[^"\\]*"|[\w.+-]+)\s*,\s*)*"data"\s*:\s*\[')
"""The beginning of a dump, whose other fields before the rows are plain values."""
_TOKEN = re.compile(rb'[\[\]{}"]')
_IN_STRING = re.compile(rb'\\.|"', re.DOTALL)


class Element(NamedTuple):
    """One value. `end`: the offset after it. `problem`: why it has no value; empty if it has one."""

    end: int
    value: Any
    problem: str = ""
    is_latin1: bool = False


@contextmanager
def opened(source: str) -> Iterator[BinaryIO]:
    """A file that can be read again and again, as UTF-8: a pipe is copied. `-` is standard input. Raises InvalidSettings: it cannot be read."""
    try:
        file = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115 closed below
    except OSError as error:
        raise InvalidSettings(f"{source} cannot be read: {error.strerror}") from error
    with file, tempfile.TemporaryFile() as copy:
        head = file.read(4)
        if head.startswith(_GZIP):
            raise InvalidSettings(f"{source} is compressed: send it through `zcat`, with - as the file")
        encoding = next((name for mark, name in _BOMS.items() if head.startswith(mark)), "")
        if not encoding and b"\0" in head:  # the first character of JSON is ASCII
            encoding = "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
        if source != "-" and not encoding and file.seekable():
            yield file
            return
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")("replace")
        chunk = head + file.read(_CHUNK)
        while chunk:
            copy.write(decoder.decode(chunk).encode() if encoding else chunk)
            chunk = file.read(_CHUNK)
        yield copy


def elements(file: BinaryIO, chunk: int = _CHUNK) -> Iterator[Element]:
    """The values of a file, from its beginning. `chunk`: bytes that are read at once where values are not lines."""
    file.seek(0)
    head = file.read(MAX_ELEMENT_BYTES)
    file.seek(0)
    for found in _lines(file) if _has_lines(head) else _members(file, chunk):
        if isinstance(found.value, dict) and isinstance(found.value.get("data"), list):
            rows = found.value["data"]  # each has an end of its own, so that a run can stop between them
            before = found.end - len(rows) + 1
            yield from (found._replace(end=before + place, value=row) for place, row in enumerate(rows))
        else:
            yield found


def _has_lines(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n", 3)[:3] if line.strip()]
    if not lines or lines[0].lstrip()[:1] == b"[":
        return not lines
    if lines[0].lstrip()[:1] != b"{" or not _element(0, lines[0]).problem:
        return True
    # A dump, cut lines, or one value over many lines.
    return not _DUMP.match(head) and len(lines) > 1 and lines[1].lstrip()[:1] == b"{"


def _lines(file: BinaryIO) -> Iterator[Element]:
    end = 0
    while line := file.readline(MAX_ELEMENT_BYTES):
        end += len(line)
        if not line.endswith(b"\n") and len(line) == MAX_ELEMENT_BYTES:
            line = b""  # not kept while the rest of it is passed over
            while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                end += len(rest)
            end += len(rest)
            yield Element(end, None, "too_long")
        elif line.strip():
            found = _element(end, line)
            is_cut = found.problem == "invalid_json" and not line.endswith(b"\n")
            yield found._replace(problem="cut_off") if is_cut else found


def _element(end: int, content: bytes) -> Element:
    try:
        return Element(end, msgspec.json.decode(content))
    except UnicodeDecodeError:
        pass
    except (msgspec.DecodeError, RecursionError) as error:
        if "utf-8" not in str(error).lower():
            return Element(end, None, "invalid_json")
    try:
        return Element(end, msgspec.json.decode(content.decode("latin-1")), is_latin1=True)
    except (msgspec.DecodeError, RecursionError):
        return Element(end, None, "invalid_json")


def _members(file: BinaryIO, size: int) -> Iterator[Element]:
    """The objects inside of an array, of the `data` of dumps, or of values that follow each other on any number of lines."""
    scan = _Scan()
    while chunk := file.read(size):
        yield from scan.take(chunk)
    if scan.is_inside:
        yield Element(scan.offset, None, "cut_off")


class _Scan:
    """Finds where objects begin and end. `base`: the depth at which rows stand: 0, 1 in an array, 2 in a dump."""

    def __init__(self) -> None:
        self.offset = 0
        self._depth = self._base = self._kept = 0
        self._in_string = False
        self._is_escaped = False
        self._held: bytearray | None = None
        self._is_long = False

    @property
    def is_inside(self) -> bool:
        return self._depth > 0

    def take(self, chunk: bytes) -> Iterator[Element]:
        """The objects that end in the next piece of the file."""
        at = 0
        self._kept = 0
        if self._is_escaped:
            at, self._is_escaped = 1, False
        while at < len(chunk):
            found = (_IN_STRING if self._in_string else _TOKEN).search(chunk, at)
            if found is None:
                self._is_escaped = self._in_string and _ends_escaped(chunk[at:])
                break
            at, token = found.end(), found[0]
            if self._in_string or token == b'"':
                self._in_string = token != b'"' or not self._in_string
            elif token in b"{[":
                at = self._open(chunk, found.start())
            else:
                yield from self._close(chunk, at)
        self._keep(chunk[self._kept :])
        self.offset += len(chunk)

    def _open(self, chunk: bytes, at: int) -> int:
        """A bracket opens. Returns where to go on."""
        after, is_object = at + 1, chunk[at : at + 1] == b"{"
        if self._depth == 0 and not is_object:
            self._base = 1
        elif self._depth == 0 and (dump := _DUMP.match(chunk, at)):
            after, self._base, self._depth = dump.end(), 2, 1
        elif self._depth == self._base and is_object:
            self._held, self._kept, self._is_long = bytearray(), at, False
        self._depth += 1
        return after

    def _close(self, chunk: bytes, after: int) -> Iterator[Element]:
        self._depth = max(0, self._depth - 1)
        if self._held is not None and self._depth == self._base:
            self._keep(chunk[self._kept : after])
            held, self._held = bytes(self._held), None
            end = self.offset + after
            yield Element(end, None, "too_long") if self._is_long else _element(end, held)
        elif self._depth < self._base or self._depth == 0:
            self._base = -1 if self._depth else 0  # after the rows of a dump, nothing in it is a row

    def _keep(self, piece: bytes) -> None:
        if self._held is not None and not self._is_long:
            self._held += piece
            self._is_long = len(self._held) > MAX_ELEMENT_BYTES
            if self._is_long:
                self._held.clear()


def _ends_escaped(text: bytes) -> bool:
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
