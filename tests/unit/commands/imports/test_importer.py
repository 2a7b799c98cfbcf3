"""Imports, through the real log, join and rewards."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from commands.imports import progress
from commands.imports.repository import ExportLink, linked
from contracts.errors import Conflict, NotFound, Unavailable
from contracts.event_log import Message
from contracts.records import Generation, Signal, decode
from contracts.tables import generation, score, signal
from contracts.tables import vote as votes
from contracts.topics import GENERATIONS, SIGNALS
from runtime.database import Database
from runtime.log.local import LocalLog
from tests.fakes import everything
from tests.unit.commands.imports.world import JUNE, LONGEST, TASK, ImportHome, row
from tests.unit.pipelines.episodes.bench import a_task


class FailingLog(LocalLog):
    """The log of a disk that is full from the third append on."""

    left = 2

    def append(self, messages: Sequence[Message]) -> None:
        self.left -= 1
        if self.left < 0:
            raise Unavailable("the disk is full")
        super().append(messages)


@pytest.fixture
def home(tmp_path: Path, database: Database, event_log: LocalLog) -> ImportHome:
    event_log.create_topics()
    return ImportHome(tmp_path, database, event_log)


def signals_of(home: ImportHome) -> dict[str, tuple[Any, str | None, str]]:
    """Name to value, correction and state, of the signals that the join has seen."""
    with home.database.snapshot() as connection:
        rows = connection.execute(select(signal.c.record, signal.c.state)).all()
    found = [(decode(Signal, item.record), item.state) for item in rows]
    return {said.name: (said.value, said.correction, state) for said, state in found}


def test_an_import_is_logged_joined_scored_and_named_off_support(home: ImportHome) -> None:
    rows = [row(f"r{number}", signals={"accepted": number % 2 == 0}) for number in range(8)]
    import_id, tally = home.bring(home.write(*rows, row("r8")))
    assert (tally["row"], tally["logged"], tally["signal"], tally.num_persons) == ({"": 9}, {"": 9}, {"accepted": 8}, 7)
    home.work()
    assert home.states() == {"off_support": 8, "unlabelled": 1}
    assert set(home.fates.values()) == {("off_support", "provider")}
    with home.database.snapshot() as connection:
        rewards = connection.execute(select(score.c.reward, score.c.purpose, score.c.version)).all()
        record = decode(Generation, connection.execute(select(generation.c.record).limit(1)).scalar_one())
        assert connection.execute(select(votes)).all() == [], "imported votes move no weight of a person"
    assert sorted(item.reward for item in rewards if item.reward is not None) == [0.0] * 4 + [1.0] * 4
    assert {(item.purpose, item.version) for item in rewards} == {("imported", -1)}
    assert record.provided is not None
    assert (record.provided.import_id, record.purpose, record.person) == (import_id, "imported", "u0")
    assert (record.created_at, record.open().text) == (JUNE, "Booked for r0.")


def test_old_signals_are_in_time_by_their_own_clock_and_late_after_their_window(home: ImportHome) -> None:
    week = 7 * 86_400.0
    rows = [
        {"id": "t1", "timestamp": JUNE, "input": "q", "output": "a"},
        {"traceId": "t1", "name": "accepted", "value": 1, "dataType": "BOOLEAN", "timestamp": JUNE + 1},
        {"traceId": "t1", "name": "thumbs", "value": 1, "dataType": "NUMERIC", "timestamp": JUNE + 2 * week},
    ]
    home.bring(home.write(*rows), kind="langfuse")
    home.work()
    assert signals_of(home) == {"accepted": (True, None, "joined"), "thumbs": ("up", None, "late")}
    assert home.states() == {"off_support": 1}


def test_a_kill_in_the_middle_is_resumed_and_every_row_is_logged_once(home: ImportHome, tmp_path: Path) -> None:
    path = home.write(*(row(f"r{number}", signals={"accepted": True}) for number in range(70)))
    full = FailingLog(tmp_path / "log")
    with pytest.raises(Unavailable):
        home.bring(path, log=full)
    full.close()
    assert len(everything(home.log, GENERATIONS)) == 40
    # The last batch was appended, and its progress was not written.
    [held] = progress.all_of(home.folder)
    progress.write(
        home.folder,
        progress.ImportProgress(
            id=held.id, source="", content=held.content, started_at=0.0, next_byte=held.next_byte // 2
        ),
    )
    _, tally = home.bring(path)
    assert (tally["row"], tally["logged"]) == ({"": 70}, {"": 70})
    assert len(everything(home.log, GENERATIONS)) > 70
    home.work()
    assert home.states() == {"off_support": 70}
    assert len({record.key for record in everything(home.log, GENERATIONS)}) == 70
    [held] = progress.all_of(home.folder)
    assert held.done_at is not None


def test_the_same_rows_in_another_export_are_duplicates_whose_new_signals_count(home: ImportHome) -> None:
    home.bring(home.write(row("r1"), row("r2"), row("r2")))
    home.work()
    _, tally = home.bring(home.write(row("r2"), row("r1", signals={"accepted": True}), row("r3"), name="again.jsonl"))
    assert (tally["duplicate"], tally["logged"]) == ({"logged before": 2}, {"": 1})
    home.work()
    assert home.states() == {"off_support": 1, "unlabelled": 2}


def test_a_dry_run_says_the_same_and_writes_nothing(home: ImportHome) -> None:
    path = home.write(row("r1", signals={"accepted": True, "mood": 3}), row("r1"), row("r2", answer=""))
    _, tally = home.bring(path, writes=False)
    assert everything(home.log, GENERATIONS) == everything(home.log, SIGNALS) == []
    assert progress.all_of(home.folder) == []
    _, again = home.bring(path)
    assert again.counts == tally.counts
    assert (tally["logged"], tally["unmapped"], tally["refused"]) == ({"": 1}, {"mood": 1}, {"empty_answer": 1})


def test_an_import_is_taken_back_even_where_it_is_not_joined_yet(home: ImportHome) -> None:
    mine, _ = home.bring(home.write(row("r1", signals={"accepted": True}), row("r2")))
    home.work()
    later, _ = home.bring(home.write(row("r3", signals={"thumbs": "up"}), row("r4"), name="later.jsonl"))
    assert home.take_back(later) == 2
    home.work()
    assert home.states() == {"off_support": 1, "quarantined": 2, "unlabelled": 1}
    assert home.take_back(mine) == 2
    home.work()
    before = home.states()
    assert before == {"quarantined": 4}
    home.take_back(mine)
    assert home.states() == before
    home.bring(home.write(row("r2", signals={"accepted": True}), name="scores.jsonl"))
    home.work()
    assert home.states() == {"off_support": 1, "quarantined": 4}, "the row came again after it was taken back"
    with home.database.snapshot() as connection:
        reasons = connection.execute(
            select(generation.c.state_reason).where(generation.c.state == "quarantined")
        ).scalars()
        assert set(reasons) == {"import"}


def test_what_was_taken_back_can_be_imported_again(home: ImportHome) -> None:
    path = home.write(row("r1", signals={"accepted": True}))
    first, _ = home.bring(path)
    home.work()
    home.take_back(first)
    home.work()
    progress.write(
        home.folder,
        progress.ImportProgress(
            id=first, source="", content=progress.get(home.folder, first).content, started_at=0.0, undone_at=1.0
        ),
    )
    second, tally = home.bring(path)
    assert second != first
    assert tally["logged"] == {"": 1}
    home.work()
    assert home.states() == {"off_support": 1, "quarantined": 1}


def test_rows_that_the_join_had_not_read_when_they_were_taken_back_can_be_imported_again(home: ImportHome) -> None:
    path = home.write(row("r1", signals={"accepted": True}))
    first, _ = home.bring(path)
    home.take_back(first)
    _, tally = home.bring(home.write(row("r1", signals={"accepted": True}), row("r2"), name="again.jsonl"))
    assert tally["logged"] == {"": 2}
    home.work()
    assert home.states() == {"off_support": 1, "quarantined": 1, "unlabelled": 1}


def test_taking_an_import_back_leaves_what_another_one_logged_first(home: ImportHome) -> None:
    home.bring(home.write(row("r1")))
    second, _ = home.bring(home.write(row("r1"), row("r2"), name="again.jsonl"))
    assert home.take_back(second) == 1
    home.work()
    assert home.states() == {"unlabelled": 1, "quarantined": 1}


def test_an_import_that_ends_before_its_progress_is_noted_can_be_taken_back(home: ImportHome, tmp_path: Path) -> None:
    full = FailingLog(tmp_path / "log")
    full.left = 0
    with pytest.raises(Unavailable):
        home.bring(home.write(row("r1")), log=full)
    full.close()
    assert [held.next_byte for held in progress.all_of(home.folder)] == [0]


def test_what_is_said_of_a_row_in_a_second_line_counts(home: ImportHome) -> None:
    lines = [row("r1"), row("r1", signals={"accepted": True}), row("r1", edit="Yes."), row("r1", edit="Yes.")]
    _, tally = home.bring(home.write(*lines))
    assert (tally["duplicate"], tally["logged"]) == ({"in this input": 3}, {"": 1})
    home.work()
    assert {name: state for name, (*_, state) in signals_of(home).items()} == {"accepted": "joined", "edited": "joined"}


def test_the_same_question_again_is_another_row_unless_nothing_tells_them_apart(home: ImportHome) -> None:
    said = {"messages": [{"role": "user", "content": "a table"}], "answer": "Booked.", "user": "ann"}
    later = [said | {"at": JUNE}, said | {"at": JUNE + 1}]
    other = [said | {"session": "s1"}, said | {"session": "s2"}]
    numbered = [said | {"id": 1}, said | {"id": 1, "answer": "No."}]
    _, tally = home.bring(home.write(*later, *other, *numbered, said, said))
    assert (tally["logged"], tally["duplicate"]) == ({"": 7}, {"in this input": 1})
    _, tally = home.bring(home.write(said | {"id": 1, "answer": "Later."}, name="second.jsonl"))
    assert tally["logged"] == {"": 1}


def test_observations_without_an_id_are_rows_of_their_own(home: ImportHome) -> None:
    seen = [
        {"traceId": "t", "type": "GENERATION", "startTime": JUNE, "input": name, "output": name} for name in ("a", "b")
    ]
    _, tally = home.bring(home.write(*seen), kind="langfuse")
    assert tally["logged"] == {"": 2}


HUGE = {"type": "function", "function": {"name": "book", "parameters": {"maximum": 10**30}}}


@pytest.mark.parametrize(
    ("changes", "refused", "unfit"),
    [
        ({"tools": [HUGE]}, {"malformed": 1}, {}),
        ({"edit": {"role": "assistant", "content": [{"type": []}]}}, {}, {"edit: malformed": 1}),
    ],
)
def test_a_value_that_no_record_holds_is_counted_and_the_rest_is_imported(
    home: ImportHome, changes: dict[str, Any], refused: dict[str, int], unfit: dict[str, int]
) -> None:
    _, tally = home.bring(home.write(row("r1", **changes), row("r2")))
    assert (tally["refused"], tally["unfit"], tally["logged"][""]) == (refused, unfit, 2 - len(refused))


def test_no_part_of_an_export_lies_in_a_named_file(home: ImportHome, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home.folder / "temporary"
    folder.mkdir()
    for name in ("SQLITE_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    links = (ExportLink("score", str(number), b"x" * 1000) for number in range(10_000))
    with linked(links) as found:
        assert found.scores("9999") == [b"x" * 1000]
        assert list(folder.iterdir()) == []


def test_an_unknown_import_and_a_second_one_at_once_are_refused(home: ImportHome) -> None:
    with progress.claimed_imports(home.folder):
        with pytest.raises(NotFound, match="has no import"):
            progress.get(home.folder, "none")
        with pytest.raises(Conflict, match="another import"), progress.claimed_imports(home.folder):
            pass


LONG = "x" * (LONGEST + 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "unknown_role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "audio"),
        ({"messages": []}, "no_messages"),
        ({"messages": 7}, "no_messages"),
        ({"answer": "  "}, "empty_answer"),
        ({"answer": {"role": "assistant", "content": None, "refusal": "no"}}, "refusal"),
        ({"at": 4_000_000_000}, "future_time"),
        ({"at": 12}, "impossible_time"),
        ({"at": "yesterday"}, "malformed_time"),
        ({"store": False}, "no_consent"),
        ({"answer": random.Random(0).randbytes(1_200_000).hex()}, "too_large"),
        ({"signals": [1]}, "malformed_signals"),
    ],
)
def test_rows_that_cannot_be_imported_are_counted_by_name(
    home: ImportHome, changes: dict[str, Any], reason: str
) -> None:
    _, tally = home.bring(home.write(row("r1", **changes), row("r2")))
    assert (tally["row"], tally["refused"], tally["logged"]) == ({"": 2}, {reason: 1}, {"": 1})


@pytest.mark.parametrize(
    ("changes", "part", "name"),
    [
        ({"signals": {"mood": 1}}, "unmapped", "mood"),
        ({"signals": {"stars": 9}}, "unfit", "stars: out_of_range"),
        ({"signals": {"stars": "many"}}, "unfit", "stars: wrong_type"),
        ({"signals": {"thumbs": "sideways"}}, "unfit", "thumbs: unknown_label"),
        ({"signals": {"accepted": 0.5}}, "unfit", "accepted: wrong_type"),
        ({"edit": "Booked for r1."}, "unfit", "edit: edit_is_answer"),
        ({"edit": LONG}, "unfit", "edit: edit_too_long"),
        ({"edit": ""}, "unfit", "edit: empty_edit"),
        ({"signals": {"accepted": "TRUE"}}, "signal", "accepted"),
        ({"signals": {"thumbs": -1}}, "signal", "thumbs"),
        ({"edit": "Booked."}, "signal", "edited"),
        ({"rejected": "No.", "preferred": [{"role": "assistant", "content": "Yes."}]}, "signal", "edited"),
    ],
)
def test_each_score_is_mapped_or_named(home: ImportHome, changes: dict[str, Any], part: str, name: str) -> None:
    _, tally = home.bring(home.write(row("r1", **changes)))
    assert (tally["joined"], tally[part], tally["logged"]) == ({"": 1}, {name: 1}, {"": 1})


def test_edits_and_preferences_become_corrections(home: ImportHome) -> None:
    home.bring(home.write(row("r1", rejected="No.", preferred="Yes.")))
    home.work()
    assert signals_of(home) == {"edited": ("Yes.", "Yes.", "joined")}


def test_maps_name_scores_and_places_in_a_row(home: ImportHome) -> None:
    given = {
        "prompt": [{"role": "user", "content": "hi"}],
        "out": {"text": "Hello."},
        "who": "ann",
        "feedback": {"ok": 1},
        "mood": 4,
    }
    maps = ("messages=prompt", "answer=out.text", "user=who", "accepted=feedback.ok", "stars=mood")
    _, tally = home.bring(home.write(given), *maps)
    assert (tally["signal"], tally["logged"]) == ({"accepted": 1, "stars": 1}, {"": 1})
    trace = {"id": "t1", "timestamp": JUNE, "input": "q", "output": "a"}
    liked = {"traceId": "t1", "name": "user-feedback", "value": 0, "dataType": "NUMERIC"}
    _, tally = home.bring(
        home.write(trace, liked, liked | {"traceId": "t2"}, name="l.jsonl"), "thumbs=user-feedback", kind="langfuse"
    )
    assert (tally["signal"], tally["orphan"]) == ({"thumbs": 1}, {"": 1})


def test_tools_are_kept_and_secrets_are_counted(home: ImportHome) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"party": 2}'}}
    tools = [
        {"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}},
        {"type": "web_search"},
    ]
    secret = [{"role": "user", "content": "use AKIA" + "IOSFODNN7EXAMPLX"}]
    agent = row("r1", answer={"role": "assistant", "content": None, "tool_calls": [call]}, tools=tools)
    _, tally = home.bring(home.write(agent, row("r2", messages=secret)))
    bodies = [decode(Generation, record.value).open() for record in everything(home.log, GENERATIONS)]
    assert [(body.tool_calls, body.tools) for body in bodies if body.tool_calls] == [([call], tools[:1])]
    assert tally["secret"] == {"AWS Access Key": 1}


def test_a_task_that_curates_filters_imported_prompts_and_keeps_its_quotas_for_live_ones(
    tmp_path: Path, database: Database, event_log: LocalLog
) -> None:
    task = a_task({"accepted": {"means": "accept"}}, curation={"secrets": True, "duplicates": 1})
    home = ImportHome(tmp_path, database, event_log, task)
    same = [{"role": "user", "content": "a table"}]
    secret = [{"role": "user", "content": "use AKIA" + "IOSFODNN7EXAMPLX"}]
    event_log.create_topics()
    home.bring(home.write(row("r1", messages=same), row("r2", messages=same), row("r3", messages=secret)))
    home.work()
    assert home.states() == {"filtered": 1, "unlabelled": 2}


def test_rows_without_a_time_have_the_same_id_in_every_export(home: ImportHome) -> None:
    rows = [{name: value for name, value in row("r1").items() if name not in {"at", "id"}}]
    home.bring(home.write(*rows))
    home.work()
    _, tally = home.bring(home.write(*rows, row("r2"), name="again.jsonl"))
    assert tally["duplicate"] == {"logged before": 1}


def test_consent_of_the_task_decides_where_a_row_says_nothing(
    tmp_path: Path, database: Database, event_log: LocalLog
) -> None:
    task = a_task({"accepted": {"means": "accept"}}, consent="none")
    home = ImportHome(tmp_path, database, event_log, task)
    _, tally = home.bring(home.write(row("r1"), row("r2", store=True)), writes=False)
    assert (tally["refused"], tally["logged"]) == ({"no_consent": 1}, {"": 1})


def test_nothing_strange_in_a_row_ends_an_import(home: ImportHome) -> None:
    strange: list[Any] = [
        7,
        None,
        [],
        {},
        {"messages": {"role": 1}},
        {"messages": [None], "answer": []},
        {"id": [1], "answer": 3},
    ]
    for kind in ("langfuse", "openai", "litellm", "otel", "jsonl"):
        more = [{"id": "t", "observations": [None, 3], "input": {}, "output": {}}, {"custom_id": 1, "response": 5}, {"choices": [1]},
                {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": "gen_ai.output.messages", "value": 1}]}]}]}]},
                {"messages": "[", "response": "{", "proxy_server_request": 3, "metadata": "x"}]  # fmt: skip
        _, tally = home.bring(home.write(*strange, *more, name=f"{kind}.jsonl"), kind=kind)
        assert tally["row"][""] >= len(strange) - 2
        assert sum(tally["refused"].values()) + sum(tally["logged"].values()) == tally["row"][""]
    assert TASK.name == "booking"
