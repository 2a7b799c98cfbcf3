"""From a log to what is trained, and a table of it: selection, curation, rendering, in this order. Nothing is written."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from commands.learn.curation import curate, held_out_prompts
from commands.learn.queries import withdrawn
from commands.learn.rendering import Renderer
from commands.learn.selection import select
from contracts.clusters import words_of
from contracts.tasks.loading import load_tasks
from pipelines.episodes.curation.curator import hash_of
from pipelines.training.settings import TrainingSettings
from pipelines.training.text.rendering import NotRendered
from pipelines.training.text.samples import TextSample
from runtime.sentinels import read_sentinels, sentinels_of_home
from runtime.settings import Settings

_KINDS = {"edit": "edits", "accepted": "accepted answers", "pair": "pairs of answers", "thumb": "lone thumbs"}


@dataclass(frozen=True)
class Lessons:
    """What was found in the log."""

    trained: list[TextSample] = field(default_factory=list)
    held_out: list[TextSample] = field(default_factory=list)
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """By kind of remark, and whether it is held out."""
    left_out: Counter[str] = field(default_factory=Counter)
    num_answers: int = 0
    num_imported: int = 0
    """Remarks about imported answers, among those that are learned from."""


def lessons_of(
    settings: Settings, base: Path, training: TrainingSettings, since: float, *, has_own_tokens: bool
) -> Lessons:
    """Read, choose and render.

    Args:
        settings: of the home with the log.
        base: whose template and tokenizer count.
        training: says how long a row may be.
        since: UTC epoch seconds; older answers are not looked at.
        has_own_tokens: `base` is the policy of that home.

    Raises InvalidSettings, InvalidTask; Unavailable, Damaged: log or database cannot be read.
    """
    tasks = load_tasks(settings.tasks)
    renderer = Renderer(base, training.max_tokens, has_own_tokens=has_own_tokens)
    sentinels = read_sentinels(sentinels_of_home(settings.home), tasks)
    with closing(settings.event_log()) as log:
        selection = select(log, tasks, since)
    gone: dict[str, str] = {}
    if selection.remarks:
        with settings.snapshot() as connection:
            gone = withdrawn(connection, {remark.record.completion_id for remark in selection.remarks})
    asked = {hash_of(words_of(item.messages)) for item in sentinels.items}
    curated = curate(selection.remarks, tasks, asked, gone)
    num_imported = sum(remark.record.purpose == "imported" for remark in curated.kept)
    found = Lessons(
        left_out=selection.left_out + curated.left_out, num_answers=selection.num_answers, num_imported=num_imported
    )
    held_out_ones = held_out_prompts(curated.kept, tasks)
    for remark in curated.kept:
        try:
            samples = renderer.samples_of(remark)
        except NotRendered as error:
            found.left_out[str(error)] += 1
            continue
        held_out = remark.prompt in held_out_ones
        found.counts[remark.kind, held_out] += 1
        (found.held_out if held_out else found.trained).extend(samples)
    return found


def table_of(lessons: Lessons) -> Table:
    """What is learned by kind, and what is left out by reason."""
    table = Table("what", "trained", "held out", "left out", title=f"{lessons.num_answers:,} answers in the log")
    for kind, name in _KINDS.items():
        table.add_row(name, f"{lessons.counts[kind, False]:,}", f"{lessons.counts[kind, True]:,}", "")
    for reason, num in lessons.left_out.most_common():
        table.add_row(reason, "", "", f"{num:,}")
    if lessons.num_imported:
        table.caption = (
            f"{lessons.num_imported:,} are about imported answers: whoever imported them answers for their terms"
        )
    return table
