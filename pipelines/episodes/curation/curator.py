"""Curation: which prompts a task does not want to learn from.

In: generations as they arrive. Out: the reason why one is filtered, or None. Decisions are remembered by completion, so that a
batch that is delivered again gets the same ones. The prompts that a task kept lately are in memory only: a restart forgets them, and a
replica knows only the partitions that it reads.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
from rensa import RMinHash

from contracts.clusters import Clusters, words_of
from contracts.errors import InvalidRecord
from contracts.records import SIGNALLED, Generation
from contracts.tasks import Task
from contracts.tasks.curation import CurationRule
from pipelines.episodes.curation import content
from runtime.metrics import CURATED

_MAX_DECISIONS = 200_000
_NUM_PERMUTATIONS = 128
_NUM_BANDS = 16
_BAND_BYTES = 4 * _NUM_PERMUTATIONS // _NUM_BANDS
_SHINGLE = 5
_SEED = 20
_MAX_HASHED_CHARACTERS = 20_000
_MAX_REMEMBERED = 100_000
_MOST_COMPARED = 1_000
"""Of a band, oldest first. Prompts of one template share bands without being similar: a hundred thousand would take hours."""
_MIN_FOR_A_SHARE = 100
"""Shares of fewer prompts are too noisy to refuse anything."""

Digest = bytes
"""128 numbers of 32 bits: as Python's numbers they would take ten times the memory."""
Name = TypeVar("Name", str, bytes)


class PromptFeatures(NamedTuple):
    """A prompt without its text. `text_hash` and `digest` are empty if the task does not ask for them."""

    at: float
    text_hash: bytes
    digest: Digest
    topic: str
    language: str
    user: str


def hash_of(text: str) -> bytes:
    """Hash of a text; upper case and white space do not count."""
    return hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=16).digest()


def digest_of(text: str) -> Digest:
    """MinHash of the 5-character shingles: the share of places at which two digests agree estimates their Jaccard similarity."""
    folded = " ".join(text[:_MAX_HASHED_CHARACTERS].lower().split())
    sketch = RMinHash(num_perm=_NUM_PERMUTATIONS, seed=_SEED)
    sketch.update([folded[start : start + _SHINGLE] for start in range(max(1, len(folded) - _SHINGLE + 1))])
    return array("I", sketch.digest()).tobytes()


class DigestIndex:
    """Digests that can be looked up by what is similar to them. `similarity`: see `CurationRule.similarity`."""

    def __init__(self, similarity: float) -> None:
        self._num_places = similarity * _NUM_PERMUTATIONS
        self._bands: dict[bytes, list[Digest]] = {}

    def __len__(self) -> int:
        return len(self._bands)

    def similar(self, digest: Digest) -> list[Digest]:
        """The similar ones, oldest first where they share a band."""
        # A shared band only makes a candidate: its eight places may agree by chance.
        near = [other for band in _bands_of(digest) for other in islice(self._bands.get(band, ()), _MOST_COMPARED)]
        distinct = list({id(other): other for other in near}.values())
        others = np.frombuffer(b"".join(distinct), np.uint32).reshape(-1, _NUM_PERMUTATIONS)
        agreeing = (others == np.frombuffer(digest, np.uint32)).sum(axis=1)
        return [one for one, num in zip(distinct, agreeing.tolist(), strict=True) if num >= self._num_places]

    def add(self, digest: Digest) -> None:
        """Keep a digest."""
        for band in _bands_of(digest):
            self._bands.setdefault(band, []).append(digest)

    def remove(self, digest: Digest) -> None:
        """Forget this very object."""
        for band in _bands_of(digest):
            others = [other for other in self._bands[band] if other is not digest]
            if others:
                self._bands[band] = others
            else:
                del self._bands[band]


@dataclass
class PromptWindow:
    """The memory of one task."""

    rule: CurationRule
    _kept: deque[PromptFeatures] = field(default_factory=deque)
    _texts: Counter[bytes] = field(default_factory=Counter)
    _topics: Counter[str] = field(default_factory=Counter)
    _languages: Counter[str] = field(default_factory=Counter)
    _users: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._digests = DigestIndex(self.rule.similarity)

    def admit(self, prompt: PromptFeatures) -> str | None:
        """Remember a prompt, or return why it is refused."""
        self._forget(prompt.at - self.rule.window_seconds)
        reason = self._refusal(prompt)
        if reason is None:
            self._count(prompt, 1)
            self._kept.append(prompt)
            self._digests.add(prompt.digest)
        return reason

    def _refusal(self, prompt: PromptFeatures) -> str | None:
        rule, num = self.rule, len(self._kept)
        if rule.duplicates is not None and self._texts[prompt.text_hash] >= rule.duplicates:
            return "duplicate"
        if rule.near_duplicates is not None and len(self._digests.similar(prompt.digest)) >= rule.near_duplicates:
            return "near_duplicate"
        if rule.max_per_user is not None and self._users[prompt.user] >= rule.max_per_user:
            return "user_quota"
        if num >= _MIN_FOR_A_SHARE and self._topics[prompt.topic] + 1 > rule.max_topic_share * (num + 1):
            return "topic_quota"
        if num >= _MIN_FOR_A_SHARE and self._languages[prompt.language] + 1 > rule.max_language_share * (num + 1):
            return "language_quota"
        return None

    def _forget(self, before: float) -> None:
        while self._kept and (self._kept[0].at < before or len(self._kept) > _MAX_REMEMBERED):
            old = self._kept.popleft()
            self._count(old, -1)
            self._digests.remove(old.digest)

    def _count(self, prompt: PromptFeatures, sign: int) -> None:
        _add(self._texts, prompt.text_hash, sign)
        _add(self._topics, prompt.topic, sign)
        _add(self._languages, prompt.language, sign)
        _add(self._users, prompt.user, sign)


def _add(counter: Counter[Name], name: Name, sign: int) -> None:
    counter[name] += sign
    if not counter[name]:
        del counter[name]


def _bands_of(digest: Digest) -> list[bytes]:
    """Each with its number."""
    places = range(0, len(digest), _BAND_BYTES)
    return [bytes([place // _BAND_BYTES]) + digest[place : place + _BAND_BYTES] for place in places]


class CheckedPrompt(NamedTuple):
    """What can be said about a prompt without looking at others. It takes time, so it is made outside of transactions."""

    refusal: str | None
    features: PromptFeatures


class Curator:
    """See the module docstring."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._rules = {name: task.curation for name, task in tasks.items() if not task.curation.is_idle}
        self._clusters = {name: Clusters(rule.topics) for name, rule in self._rules.items()}
        self._windows = {name: PromptWindow(rule) for name, rule in self._rules.items()}
        self._decided: OrderedDict[str, str | None] = OrderedDict()

    @property
    def is_needed(self) -> bool:
        """True if any task curates."""
        return bool(self._rules)

    def check(self, record: Generation) -> CheckedPrompt | None:
        """Judge a prompt by itself; None if its task does not curate, or if no person wrote it."""
        rule = self._rules.get(record.task)
        if rule is None or record.purpose not in SIGNALLED:
            return None
        try:
            text = words_of(record.open().messages)
        except InvalidRecord:
            return None  # rewards reports the damaged body
        language = content.language_of(text) if rule.languages or rule.max_language_share < 1 else ""
        features = PromptFeatures(
            at=record.created_at,
            text_hash=hash_of(text) if rule.duplicates else b"",
            digest=digest_of(text) if rule.near_duplicates else b"",
            topic=self._clusters[record.task].of(text),
            language=language,
            # With the tenant: another tenant's user of the same name must not use up this user's quota.
            user=f"{record.tenant}/{record.person or ''}",
        )
        return CheckedPrompt(content.refusal(rule, text, language), features)

    def decide(self, record: Generation, prompt: CheckedPrompt) -> str | None:
        """Why the prompt is filtered: by itself, or because the window holds enough similar ones. None if it is kept.

        All choices of a completion and all tries of a request get the same decision: they share one prompt. Imported prompts use up no
        quota of live ones.
        """
        if record.purpose == "imported":
            CURATED.labels(record.task, prompt.refusal or "kept").inc()
            return prompt.refusal
        if record.completion_id in self._decided:
            return self._decided[record.completion_id]
        request = record.attempt.request if record.attempt else None
        if record.attempt and record.attempt.count > 0 and request is not None and request in self._decided:
            reason = self._decided[request]
        else:
            reason = prompt.refusal or self._windows[record.task].admit(prompt.features)
        for name in (record.completion_id, request):
            if name is not None:
                self._decided[name] = reason
        while len(self._decided) > _MAX_DECISIONS:
            self._decided.popitem(last=False)
        CURATED.labels(record.task, reason or "kept").inc()
        return reason
