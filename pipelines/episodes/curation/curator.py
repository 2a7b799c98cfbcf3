"""Curation: which prompts a task does not want to learn from.

In: generations as they arrive. Out: the reason why one is filtered, or None. Decisions are remembered by completion, so that a
batch that is delivered again gets the same ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from contracts.clusters import Clusters, words_of
from contracts.errors import InvalidRecord
from contracts.records import Generation
from contracts.tasks import Task
from pipelines.episodes.curation import content
from pipelines.episodes.curation.memory import PromptFeatures, PromptWindow, digest_of, hash_of
from runtime.metrics import CURATED

_MAX_DECISIONS = 200_000


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
        """Judge a prompt by itself; None if its task does not curate, or if no user wrote it."""
        rule = self._rules.get(record.task)
        if rule is None or record.purpose != "user":
            return None
        try:
            text = words_of(record.open().messages)
        except InvalidRecord:
            return None  # rewards reports the damaged body
        language = content.language_of(text) if rule.languages or rule.max_language_share < 1 else ""
        features = PromptFeatures(
            at=record.created_at,
            text_hash=hash_of(text) if rule.duplicates else b"",
            digest=digest_of(text) if rule.near_duplicates else (),
            topic=self._clusters[record.task].of(text),
            language=language,
            # With the tenant: another tenant's user of the same name must not use up this user's quota.
            user=f"{record.tenant}/{record.person or ''}",
        )
        return CheckedPrompt(content.refusal(rule, text, language), features)

    def decide(self, record: Generation, prompt: CheckedPrompt) -> str | None:
        """Why the prompt is filtered: by itself, or because the window holds enough similar ones. None if it is kept.

        All choices of a completion and all tries of a request get the same decision: they share one prompt.
        """
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
