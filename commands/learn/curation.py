"""Which remarks are learned: filtered one by one, then against each other, then by person; what is left out has a name. Pure.

Of the task's [curation] it takes every rule, with a window as long as the log. Beyond it, for learned text is repeated word by word: secrets are
refused in prompts and answers whether the task asks or not, and personal data that the task names in answers too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from commands.learn.people import distrusted
from commands.learn.selection import Remark, texts_in, with_pairs
from contracts.clusters import Clusters, words_of
from contracts.tasks import Task
from contracts.tasks.curation import CurationRule
from contracts.tasks.planted_secrets import find_secret
from pipelines.episodes.curation import content
from pipelines.episodes.curation.curator import (
    Digest,
    DigestIndex,
    PromptFeatures,
    PromptWindow,
    digest_of,
    hash_of,
)

_GARBLED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
"""Control characters, and what stands for bytes that were not text."""
_MOST_REPETITION = 0.5
"""Of a text to learn: of its runs of three words, so many occurred before."""
_HELD_OUT = 10
"""One prompt in so many is never trained, so that a loss can be told before and after."""


class Curated(NamedTuple):
    """What is learned, and why the rest is not."""

    kept: list[Remark]
    left_out: Counter[str]


def curate(
    remarks: Sequence[Remark], tasks: Mapping[str, Task], sentinels: Collection[bytes], gone: Mapping[str, str]
) -> Curated:
    """Choose what is learned.

    Args:
        remarks: oldest first.
        tasks: by name; each remark's task is there.
        sentinels: `hash_of` the words of each of the gate's questions: what was trained on proves nothing.
        gone: sample key to the ledger's state, for what was erased or quarantined.
    """
    rules = {name: task.curation.model_copy(update={"window_seconds": math.inf}) for name, task in tasks.items()}
    clusters = {name: Clusters(rule.topics) for name, rule in rules.items()}
    windows = {name: PromptWindow(rule) for name, rule in rules.items() if not rule.is_idle}
    kept, left_out, said, decided = (
        list[Remark](),
        Counter[str](),
        set[tuple[object, ...]](),
        dict[tuple[str, str], str | None](),
    )
    left_out.update(gone[remark.record.key] for remark in remarks if remark.record.key in gone)
    # Before answers become pairs: a pair holds the text of two.
    present = with_pairs((remark for remark in remarks if remark.record.key not in gone), left_out)
    for remark in sorted(present, key=lambda item: item.record.created_at):
        name, words = remark.record.task, words_of(remark.body.messages)
        lesson = (remark.prompt, remark.kind, hash_of(remark.chosen), remark.is_good, remark.person)
        reason = "sentinel" if hash_of(words) in sentinels else None
        reason = reason or _refusal(remark, words, rules[name]) or ("duplicate" if lesson in said else None)
        if reason is None and name in windows:
            # All that was said about one completion shares its prompt.
            place = (name, remark.record.completion_id)
            if place not in decided:
                decided[place] = windows[name].admit(_features(remark, words, rules[name], clusters[name]))
            reason = decided[place]
        if reason is not None:
            left_out[reason] += 1
            continue
        said.add(lesson)
        kept.append(remark)
    out = distrusted(kept)
    left_out.update(out.values())
    return Curated([remark for place, remark in enumerate(kept) if place not in out], left_out)


def held_out_prompts(remarks: Sequence[Remark], tasks: Mapping[str, Task]) -> frozenset[bytes]:
    """The prompts that are kept for measuring, with all that is said about them; the same in every run over one log.

    A prompt goes with the first that it resembles, as curation compares prompts: else one that was learned by heart would be measured in
    other words. A group of more than a tenth of all prompts, as templates make them, is divided by its prompts.
    """
    indexes = {name: DigestIndex(task.curation.similarity) for name, task in tasks.items()}
    firsts, groups = dict[Digest, bytes](), dict[bytes, bytes]()
    for remark in sorted(remarks, key=lambda item: item.record.created_at):
        if (prompt := remark.prompt) not in groups:
            index, digest = indexes[remark.record.task], digest_of(words_of(remark.body.messages))
            near = index.similar(digest)
            if not near:
                index.add(digest)
            groups[prompt] = firsts[near[0]] if near else firsts.setdefault(digest, prompt)
    sizes, most = Counter(groups.values()), max(_HELD_OUT, len(groups) // _HELD_OUT)
    chosen = {prompt: first if sizes[first] <= most else prompt for prompt, first in groups.items()}
    return frozenset(prompt for prompt, one in chosen.items() if one[0] % _HELD_OUT == 0)


def _refusal(remark: Remark, words: str, rule: CurationRule) -> str | None:
    texts = [remark.chosen, *([] if remark.rejected is None else [remark.rejected])]
    everything = [*texts_in([remark.body.messages, remark.body.tools, remark.body.tool_calls]), *texts]
    everything += [remark.body.reasoning] if remark.body.reasoning else []
    is_edit = remark.kind == "edit" and remark.rejected is not None
    rules: tuple[tuple[str, Callable[[], object]], ...] = (
        ("empty", lambda: not remark.chosen.strip() and not remark.body.tool_calls),
        ("edit_is_the_answer", lambda: is_edit and remark.chosen.strip() == (remark.rejected or "").strip()),
        ("garbled", lambda: any(map(_GARBLED.search, texts))),
        ("secret", lambda: any(map(_has_secret, everything))),
        ("personal_data", lambda: any(content.find_personal_data(text, rule.personal_data) for text in texts)),
        ("repetitive_answer", lambda: content.repetition(remark.chosen) > _MOST_REPETITION),
    )
    own = next((name for name, is_broken in rules if is_broken()), None)
    return own or content.refusal(rule, words, content.language_of(words) if rule.languages else "")


@lru_cache(maxsize=4096)
def _has_secret(text: str) -> bool:
    return find_secret(text) is not None


def _features(remark: Remark, words: str, rule: CurationRule, clusters: Clusters) -> PromptFeatures:
    return PromptFeatures(
        at=remark.record.created_at,
        text_hash=hash_of(words) if rule.duplicates else b"",
        digest=digest_of(words) if rule.near_duplicates else b"",
        topic=clusters.of(words),
        language=content.language_of(words) if rule.max_language_share < 1 else "",
        user=f"{remark.record.tenant}/{remark.record.person or ''}",
    )
