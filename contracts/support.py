"""The support of each sampled token: which tokens could have been drawn, after top-p, top-k and min-p left the others out. Pure.

With them the trainer computes the log-probs that were sampled from; DeepSeek-V3.2 keeps the same mask (arXiv 2512.02556). Packed:
a zstd frame of one uint8 for each token, the number of its ids, and then all ids as little-endian int32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zstandard

from contracts.compression import decompressed

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_IDS = 64
"""Ids of one token. `top_k = 50` always fits; of `top_p = 0.9` what remains unclear to the model does not."""
_MAX_BYTES = 64 * 2**20


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
