"""How records pack bytes: bodies, and of each token the experts chosen and the tokens that could have been drawn. Checked on entry. Pure.

Choices of experts are by far the largest part of a sample (48 layers with 8 experts are 768 bytes per token), so they are compressed
themselves: a zstd frame of uint16. The *support* of a token are the tokens that top-p, top-k and min-p left over; with them the trainer
computes the log-probs that were sampled from (as DeepSeek-V3.2, arXiv 2512.02556): a zstd frame of one uint8 for each token, the
number of its ids, and then all ids as little-endian int32.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import zstandard

from contracts.sampling import ExpertShape

MAX_PACKED_BYTES = 400_000
"""Of one answer: a record of the log takes 1 MB, and an experience has the tokens too. A longer answer has no record of experts."""
MOST_IDS = 64
"""Of one token's support. `top_k = 50` always fits; of `top_p = 0.9` what remains unclear to the model does not."""
_MAX_BYTES = 64 * 2**20


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


def pack_experts(choices: bytes) -> bytes:
    """Choices (uint16, little-endian) as records have them: a zstd frame."""
    return zstandard.ZstdCompressor(level=3).compress(choices)


def experts_of(packed: bytes, shape: ExpertShape) -> np.ndarray:
    """The choices [tokens, layers, chosen], uint16. Bytes and shape must agree: see `experts_problem`."""
    return np.frombuffer(decompressed(packed, _MAX_BYTES), "<u2").reshape(msgspec.structs.astuple(shape))


def experts_problem(packed: bytes, shape: ExpertShape | None, num_tokens: int) -> str:
    """Why bytes cannot be the expert choices of a row of `num_tokens`, the last of which went through no model; empty if they can."""
    if shape is None:
        return f"experts: {len(packed)} bytes without a shape" if packed else ""
    dimensions = list(msgspec.structs.astuple(shape))
    try:
        num_bytes = len(decompressed(packed, _MAX_BYTES))
    except zstandard.ZstdError as error:
        return f"experts: {len(packed)} bytes cannot be decompressed: {error}"
    if min(dimensions) < 1 or num_bytes != 2 * math.prod(dimensions):
        return f"experts: {num_bytes} bytes are not an array {dimensions} of uint16"
    if shape.num_tokens != num_tokens - 1:
        return f"experts: recorded for {shape.num_tokens} tokens of {num_tokens}, where all but the last have some"
    return ""


def pack_support(places: Sequence[Sequence[int] | None]) -> bytes:
    """The supports of an answer's tokens; empty if one is not known."""
    known = [ids for ids in places if ids]
    if not known or len(known) < len(places) or max(map(len, known)) > MOST_IDS:
        return b""
    counts = np.asarray([len(ids) for ids in known], np.uint8)
    ids = np.asarray([token_id for place in known for token_id in place], "<i4")
    return zstandard.ZstdCompressor(level=3).compress(counts.tobytes() + ids.tobytes())


def support_of(packed: bytes, num_tokens: int) -> np.ndarray:
    """The ids int32 [tokens, most], -1 where a token has fewer. Check the bytes first: see `support_problem`."""
    counts, ids = _unpacked(packed, num_tokens)
    found = np.full((num_tokens, int(counts.max())), -1, np.int32)
    found[np.arange(found.shape[1]) < counts[:, None]] = ids
    return found


def support_problem(packed: bytes, token_ids: np.ndarray) -> str:
    """Why bytes cannot be the supports of sampled tokens (int32 [tokens]); empty if they can, or if nothing was recorded."""
    if not packed:
        return ""
    try:
        counts, ids = _unpacked(packed, len(token_ids))
    except (zstandard.ZstdError, ValueError) as error:
        return f"support: {len(packed)} bytes cannot be read: {error}"
    if not len(counts) or counts.min() < 1 or counts.max() > MOST_IDS or len(ids) != int(counts.sum(dtype=np.int64)):
        return f"support: {len(ids)} ids are not 1 to {MOST_IDS} for each of {len(token_ids)} tokens"
    of_token = np.repeat(np.arange(len(token_ids)), counts)
    if len(np.unique(of_token.astype(np.int64) << 32 | ids.astype(np.int64))) < len(ids) or ids.min() < 0:
        return "support: a token has an id twice, or a negative one"
    holds = np.zeros(len(token_ids), np.bool_)
    holds[of_token[ids == token_ids[of_token]]] = True
    if not holds.all():
        place = int(np.flatnonzero(~holds)[0])
        return f"support: token {place} was sampled as {int(token_ids[place])}, which its support excludes"
    return ""


def _unpacked(packed: bytes, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    plain = decompressed(packed, _MAX_BYTES)
    if len(plain) < num_tokens or (len(plain) - num_tokens) % 4:
        raise ValueError(f"{len(plain)} bytes are no counts of {num_tokens} tokens with ids")
    return np.frombuffer(plain[:num_tokens], np.uint8), np.frombuffer(plain[num_tokens:], "<i4")
