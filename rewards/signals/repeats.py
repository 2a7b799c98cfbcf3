"""Whether a person inserts the same text into answers to different prompts, as advertisers do, where hardly anybody else does so. Pure.

An edit is kept as a sketch: a hash of its prompt, and the smallest hashes of the 5-character shingles of its insertions (bottom-k: Broder,
On the Resemblance and Containment of Documents, 1997), so a number that changes hides nothing. Where many people repeat themselves, as with
labels or a phrase of the house that answers lack, repeating is right, and nobody is refused for it.
"""

from __future__ import annotations

import zlib
from itertools import combinations

from rapidfuzz.distance import Levenshtein

from rewards.signals.people import Person

RARE = 0.05
"""Of the people who said two things: if more than so many repeat themselves, nobody is refused for it. So nobody is, of fewer than 20."""
REMEMBERED = 6
"""Newest edits of a person that are compared. Older ones are forgotten."""
_NUM_MARKS, _ALIKE = 16, 0.85
_SHINGLE, _LEAST = 5, 16
_MAX_CHARACTERS = 20_000
_BYTES = 4
_SKETCH_BYTES = _BYTES * (1 + _NUM_MARKS)


def sketch_of(prompt: str, answer: str, edit: str) -> bytes:
    """The sketch of an edit's insertions; empty if they are too short to say anything. Only the beginnings of very long texts count."""
    before, after = (text[:_MAX_CHARACTERS].lower().split() for text in (answer, edit))
    parts = [after[new.dest_start : new.dest_end] for new in Levenshtein.opcodes(before, after) if new.tag != "equal"]
    inserted = " ".join(word for part in parts for word in part)
    if len(inserted) < _LEAST:
        return b""
    shingles = {inserted[start : start + _SHINGLE] for start in range(len(inserted) - _SHINGLE + 1)}
    marks = sorted(zlib.crc32(each.encode("utf-8", "replace")) for each in shingles)[:_NUM_MARKS]
    marks += marks[-1:] * (_NUM_MARKS - len(marks))
    return b"".join(
        number.to_bytes(_BYTES, "big") for number in (zlib.crc32(prompt.encode("utf-8", "replace")), *marks)
    )


def is_repeated(person: Person, everybody: Person, sketch: bytes) -> bool:
    """Count who spoke, remember their edit, and say whether it repeats one of theirs over another prompt, where that is rare.

    Both are changed in place: `everybody` counts people. `sketch`: empty if they inserted nothing.
    """
    before = (person.num_speaking, person.num_repeating)
    person.num_speaking = int(person.num > 1)
    known = [person.edits[start : start + _SKETCH_BYTES] for start in range(0, len(person.edits), _SKETCH_BYTES)]
    others = [one for one in known if one[:_BYTES] != sketch[:_BYTES]]  # A prompt has one edit: the newest.
    if sketch:
        kept = [*others, sketch][-REMEMBERED:]
        person.edits = b"".join(kept)
        person.num_repeating = int(any(_are_alike(one, other) for one, other in combinations(kept, 2)))
    everybody.num_speaking += person.num_speaking - before[0]
    everybody.num_repeating += person.num_repeating - before[1]
    is_rare = everybody.num_repeating <= RARE * everybody.num_speaking
    return is_rare and bool(sketch) and any(_are_alike(one, sketch) for one in others)


def _are_alike(one: bytes, other: bytes) -> bool:
    marks, others = ({text[at : at + _BYTES] for at in range(_BYTES, len(text), _BYTES)} for text in (one, other))
    return len(marks & others) >= _ALIKE * max(len(marks), len(others))
