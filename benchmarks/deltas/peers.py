"""How others send a version of the weights: the published formats, written again from their descriptions and sources.

In: the bf16 words of a base and of a target. Out: a payload, and the target again, bit for bit. Waits: for nothing, the
external programs of `weight_tools` aside. All tensors of a model are joined to one stream of words. That flatters the
peers slightly: they send a header, a name and a count per tensor, and compress each tensor, or each bucket, by itself;
nor do they hash here. They trust what they read, so payloads must come from the same peer and the same base.

- raw: positions as int32, new words; not compressed (TRL, verl, vLLM's sparse patches).
- PULSE v2: gaps between positions as int32, new words, zstd-1 (`sparse_codec.py` of grail, its default). Its paper also
  narrows the gaps, which grail does in its format 3.1 with rows and columns: here 16-bit gaps in the flat stream, which
  packs better than either.
- XOR: every word XOR its base through zstd-1 (slime, and Stitch by way of Miles).
- NeMo-RL: unchanged words before each change as uint16, XOR of the changed words, zstd-1. It widens the gaps of a tensor
  that holds a longer one; in one stream that would punish all tensors for one, so a long gap is an escape here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.deltas.tools import TOOLS, DeltaTool, apply_patch, make_patch, missing
from contracts.errors import InvalidValue

_LEVEL = 1  # of zstd, in all of these formats
_MAX_WORDS = 2**31 - 1
_ESCAPE = 0xFFFF
_CHANGE_BYTES, _WORD_BYTES, _POSITION_BYTES, _COUNT_BYTES = 6, 2, 4, 8

Words = npt.NDArray[np.uint16]
"""The bits of a whole model in bf16, one dimension."""
Places = npt.NDArray[np.int64]
"""Indices into words, rising."""


class DeltaPeer(NamedTuple):
    """One way to send a version."""

    name: str
    encode: Callable[[Words, Words], bytes]
    """From base and target to a payload; raises InvalidValue for words that do not fit together."""
    decode: Callable[[Words, bytes], Words]
    """From the same base and a payload to the target, in memory of its own."""
    is_slow: bool
    """An external program: run it once, and take its time from `weight_tools.cpu_seconds`."""


def peers(search_path: str | None = None) -> list[DeltaPeer]:
    """Those that can run here; programs are looked for on `search_path`, PATH by default."""
    tools = [tool for tool in TOOLS if missing(tool, search_path) is None]
    return [*_FORMATS, *(_peer_of(tool, search_path) for tool in tools)]


def missing_peers(search_path: str | None = None) -> dict[str, str]:
    """Those that cannot run here, by name, and what to install."""
    found = {tool.name: missing(tool, search_path) for tool in TOOLS}
    return {name: instruction for name, instruction in found.items() if instruction is not None}


def _encode_raw(base: Words, target: Words) -> bytes:
    places = _changed(base, target)
    return places.astype("<i4").tobytes() + target[places].tobytes()


def _decode_raw(base: Words, payload: bytes) -> Words:
    count = len(payload) // _CHANGE_BYTES
    places = np.frombuffer(payload, "<i4", count)
    return _replaced(base, places, np.frombuffer(payload, "<u2", count, offset=count * _POSITION_BYTES))


def _encode_pulse(base: Words, target: Words) -> bytes:
    places = _changed(base, target)
    return _compress(np.diff(places, prepend=0).astype("<i4").tobytes() + target[places].tobytes())


def _decode_pulse(base: Words, payload: bytes) -> Words:
    plain = _decompress(payload)
    count = len(plain) // _CHANGE_BYTES
    places = np.cumsum(np.frombuffer(plain, "<i4", count), dtype=np.int64)
    return _replaced(base, places, np.frombuffer(plain, "<u2", count, offset=count * _POSITION_BYTES))


def _encode_narrow_pulse(base: Words, target: Words) -> bytes:
    places = _changed(base, target)
    return _compress(_with_gaps(places, target[places]))


def _decode_narrow_pulse(base: Words, payload: bytes) -> Words:
    return _replaced(base, *_split_gaps(_decompress(payload)))


def _encode_xor(base: Words, target: Words) -> bytes:
    _check(base, target)
    return _compress((base ^ target).data)


def _decode_xor(base: Words, payload: bytes) -> Words:
    flipped: Words = np.frombuffer(_decompress(payload), "<u2")
    return base ^ flipped


def _encode_nemo(base: Words, target: Words) -> bytes:
    places = _changed(base, target)
    return _compress(_with_gaps(places, base[places] ^ target[places]))


def _decode_nemo(base: Words, payload: bytes) -> Words:
    places, flipped = _split_gaps(_decompress(payload))
    return _replaced(base, places, base[places] ^ flipped)


_FORMATS = (
    DeltaPeer("raw int32 + bf16 (TRL, verl, vLLM)", _encode_raw, _decode_raw, is_slow=False),
    DeltaPeer("PULSE v2", _encode_pulse, _decode_pulse, is_slow=False),
    DeltaPeer("PULSE v2, gaps in 16 bits", _encode_narrow_pulse, _decode_narrow_pulse, is_slow=False),
    DeltaPeer("XOR + zstd-1 (slime, Stitch)", _encode_xor, _decode_xor, is_slow=False),
    DeltaPeer("u16 gaps + XOR values + zstd-1 (NeMo-RL)", _encode_nemo, _decode_nemo, is_slow=False),
)


def _with_gaps(places: Places, values: Words) -> bytes:
    """The number of gap words, gap words, values: a gap is the unchanged words before a change, in 16 bits.

    Every escape word stands for 65535 unchanged words and no change; so a gap of 65535 is an escape and a zero.
    """
    gaps = np.diff(places, prepend=-1) - 1
    num_escapes = gaps // _ESCAPE
    words = np.full(gaps.size + int(num_escapes.sum()), _ESCAPE, dtype="<u2")
    words[np.cumsum(num_escapes + 1) - 1] = gaps % _ESCAPE
    return words.size.to_bytes(_COUNT_BYTES, "little") + words.tobytes() + values.tobytes()


def _split_gaps(plain: bytes) -> tuple[Places, Words]:
    num_words = int.from_bytes(plain[:_COUNT_BYTES], "little")
    words = np.frombuffer(plain, "<u2", num_words, offset=_COUNT_BYTES)
    values = np.frombuffer(plain, "<u2", offset=_COUNT_BYTES + num_words * _WORD_BYTES)
    num_unchanged = np.cumsum(words, dtype=np.int64)[words != _ESCAPE]
    return num_unchanged + np.arange(values.size), values


def _changed(base: Words, target: Words) -> Places:
    _check(base, target)
    return np.flatnonzero(base != target)


def _replaced(base: Words, places: npt.NDArray[np.integer], values: Words) -> Words:
    target = base.copy()
    target[places] = values
    return target


def _check(base: Words, target: Words) -> None:
    if base.dtype != np.uint16 or target.dtype != np.uint16 or base.ndim != 1 or base.shape != target.shape:
        raise InvalidValue(
            f"base and target must be flat uint16 arrays of one length, not {base.dtype}{list(base.shape)} and "
            f"{target.dtype}{list(target.shape)}: join the tensors that both hold, in the same order",
            param="target",
        )
    if base.size > _MAX_WORDS:
        raise InvalidValue(
            f"{base.size} words are more than the formats' int32 positions reach: take a part of the model",
            param="target",
        )


def _compress(plain: bytes | memoryview) -> bytes:
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plain)


def _decompress(payload: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(payload)


def _peer_of(tool: DeltaTool, search_path: str | None) -> DeltaPeer:
    return DeltaPeer(
        tool.name,
        partial(_encode_with, tool, search_path),
        partial(_decode_with, tool, search_path),
        is_slow=True,
    )


def _encode_with(tool: DeltaTool, search_path: str | None, base: Words, target: Words) -> bytes:
    _check(base, target)
    return make_patch(tool, base.tobytes(), target.tobytes(), search_path)


def _decode_with(tool: DeltaTool, search_path: str | None, base: Words, payload: bytes) -> Words:
    return np.frombuffer(bytearray(apply_patch(tool, base.tobytes(), payload, search_path)), dtype="<u2")
