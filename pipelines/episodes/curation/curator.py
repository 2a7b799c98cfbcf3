"""Curation of a process: what each task's rule says of a generation's prompt.

In: generations as they arrive. Out: why one is not learned from, or None. It remembers what it decided about a completion
until the window is over, so that a batch that is delivered again is decided again alike.
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
from pipelines.episodes.curation.memory import Seen, Window, digest_of, hash_of
from runtime.metrics import CURATED

_MOST_DECIDED = 200_000


class Prompt(NamedTuple):
    """A prompt as far as it can be judged alone: what takes time, outside of any transaction."""

    refusal: str | None
    seen: Seen


class Curator:
    """See the module docstring."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._rules = {name: task.curation for name, task in tasks.items() if not task.curation.is_idle}
        self._clusters = {name: Clusters(rule.topics) for name, rule in self._rules.items()}
        self._windows = {name: Window(rule) for name, rule in self._rules.items()}
        self._decided: OrderedDict[str, str | None] = OrderedDict()

    @property
    def is_needed(self) -> bool:
        """Whether any task curates at all."""
        return bool(self._rules)

    def look(self, record: Generation) -> Prompt | None:
        """Judge a prompt by itself; None where its task curates nothing, or it is nobody's."""
        rule = self._rules.get(record.task)
        if rule is None or record.purpose != "user":
            return None
        try:
            text = words_of(record.open().messages)
        except InvalidRecord:
            return None  # rewards refuses it by name
        language = content.language_of(text) if rule.languages or rule.max_language_share < 1 else ""
        seen = Seen(
            at=record.created_at,
            text_hash=hash_of(text) if rule.duplicates else b"",
            digest=digest_of(text) if rule.near_duplicates else (),
            topic=self._clusters[record.task].of(text),
            language=language,
            # Not the person's name alone: another tenant could use up what this one's user may have.
            user=f"{record.tenant}/{record.person or ''}",
        )
        return Prompt(content.refusal(rule, text, language), seen)

    def decide(self, record: Generation, prompt: Prompt) -> str | None:
        """Why it is not learned from: by itself, or because the window holds enough of its kind.

        All choices fare alike, and a later try of a request fares like the one before: it is no second prompt.
        """
        if record.completion_id in self._decided:
            return self._decided[record.completion_id]
        request = record.attempt.request if record.attempt else None
        if record.attempt and record.attempt.count > 0 and request is not None and request in self._decided:
            reason = self._decided[request]
        else:
            reason = prompt.refusal or self._windows[record.task].admit(prompt.seen)
        for name in (record.completion_id, request):
            if name is not None:
                self._decided[name] = reason
        while len(self._decided) > _MOST_DECIDED:
            self._decided.popitem(last=False)
        CURATED.labels(record.task, reason or "kept").inc()
        return reason
