"""Compresses bodies with zstd, with a checksum that detects bits that a disk changed."""

from __future__ import annotations

import threading

import zstandard


class _Compressor(threading.local):
    """One for each thread: none may be used by two at once, and to make one takes four times as long as to compress a body."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdCompressor(level=3, write_checksum=True)


_COMPRESSOR = _Compressor()


def compressed(plain: bytes) -> bytes:
    """The bytes, smaller."""
    return _COMPRESSOR.zstd.compress(plain)


def decompressed(packed: bytes, most: int) -> bytes:
    """The bytes of a frame. Raises ZstdError: they are damaged, or more than `most`, which is known before any is decompressed."""
    if zstandard.frame_content_size(packed) > most:
        raise zstandard.ZstdError(f"it claims more than {most} bytes")
    return zstandard.decompress(packed, max_output_size=most)
