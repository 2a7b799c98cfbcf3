"""The wire form of a record: its msgpack, cut into a head, packed with a dictionary, and the body of an answer as it is.

    record ─▶ msgpack ─▶ head ─▶ zstd, with the dictionary ─▶ {"schema": 3, "head": ..., "body": ...} ─▶ log and tables
                    └──▶ body (compressed already) ─────────────────────────────────────────────┘

Heads repeat names of fields, ids and words, so a head is a third as long when packed. Records of earlier releases are plain msgpack, and
are read as they are. The schema stands outside, so that a process of an earlier release refuses a record by name.
"""

from __future__ import annotations

import threading

import msgspec
import zstandard

from contracts.errors import InvalidRecord, NewerSchema
from contracts.event_log import MAX_RECORD_BYTES, is_damaged
from contracts.wire_dictionary import dictionary

SCHEMA = 3
"""Since 2, heads have the key id of a sealed body, the attempt of a request and its number of choices; signals have comments.
Since 3, heads are packed."""
_LAST_SCHEMA = 1000
"""A newer schema stops a worker until it is upgraded. A number above this limit was made up, so such a record is invalid."""
_MAX_HEAD_BYTES = MAX_RECORD_BYTES
"""A longer head is not packed, so that what is too large for the log stays too large, and a reader needs no more memory than before."""
_LEVEL = -1
"""Literals stay as they are: to code them takes three times as long, and gains nothing in so few bytes."""


class _Schema(msgspec.Struct):
    """Read alone and first, because a newer schema may have changed other fields."""

    schema: int


class _Wire(msgspec.Struct, omit_defaults=True):
    schema: int
    head: bytes = b""
    """Empty: the record is not packed, and stands here itself."""
    body: bytes = b""


class _Zstd(threading.local):
    """One pair for each thread: none may be used by two at once."""

    def __init__(self) -> None:
        words = zstandard.ZstdCompressionDict(dictionary(), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self.compressor = zstandard.ZstdCompressor(_LEVEL, dict_data=words)
        self.decompressor = zstandard.ZstdDecompressor(dict_data=words)


_ZSTD = _Zstd()


def packed(plain: bytes, num_body_bytes: int = 0) -> bytes:
    """The wire form of a record's msgpack. Its last `num_body_bytes` are not compressed again."""
    num_head_bytes = len(plain) - num_body_bytes
    if num_head_bytes > _MAX_HEAD_BYTES:
        return plain
    head = _ZSTD.compressor.compress(plain[:num_head_bytes])
    return msgspec.msgpack.encode(_Wire(SCHEMA, head, plain[num_head_bytes:]))


def unpacked(kind: str, wire: bytes) -> bytes:
    """Invert `packed`; what was not packed is returned as it is. Raises NewerSchema; InvalidRecord: these are no `kind`."""
    if is_damaged(wire):
        raise InvalidRecord(f"not the {kind} that was appended: its checksum differs; the disk changed bits")
    try:
        check_schema(kind, msgspec.msgpack.decode(wire, type=_Schema).schema)
        found = msgspec.msgpack.decode(wire, type=_Wire)
        return _head(found.head) + found.body if found.head else wire
    except (msgspec.MsgspecError, zstandard.ZstdError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"not a {kind}: {error}") from error


def check_schema(kind: str, schema: int) -> None:
    """Raises NewerSchema: a newer Millrace wrote it; InvalidRecord: no Millrace did."""
    if not 1 <= schema <= _LAST_SCHEMA:
        raise InvalidRecord(f"not a {kind}: no Millrace ever wrote schema {schema}")
    if schema > SCHEMA:
        raise NewerSchema(f"{kind} has schema {schema}, this process reads up to {SCHEMA}: upgrade it", schema=schema)


def _head(compressed: bytes) -> bytes:
    if zstandard.frame_content_size(compressed) > _MAX_HEAD_BYTES:
        raise zstandard.ZstdError(f"its head claims more than {_MAX_HEAD_BYTES} bytes")
    return _ZSTD.decompressor.decompress(compressed, max_output_size=_MAX_HEAD_BYTES)
