"""Every table, by the process that writes its rows; all others only read them (docs/decisions/0001).

Tables of training, release, engines, sessions and keys stand in `serving.py`.

every worker, its own rows   position, outbox, dead_letter
every process at its start,  log_topic: which log the database was written with, and how far it went. Episodes updates it once a
  and episodes               minute; the command line adds how many unread records an accepted loss cost
every process, its own row   process_beat: its newest sign of life
command line                 api_key
migrations, feedback         home_secret: the secrets of the draw of arms and of receipts, each made once
dashboard                    dashboard_session
engine                       swap; engine_replica: its own row, or that of the vLLM server that the process follows
inference                    agent_session: keys of single sessions, and what their calls used of their budgets
feedback                     received_signal, signal_count; rejection_count: refused items by reason, part of `rejected` in
                             signal_count; new rows of waiting_signal: signals whose key has no answer yet
                             the command line adds rows of received_signal: signals that it imports
episodes                     generation, signal, outcome: the join and the ledger
                             join_key: the newest answer that an app's own key or a session stands for
                             session_call: the calls of each session, and which call each one goes on from
                             ledger_epoch, ledger_change: the trainer's epochs as the log reports them, how far the outcomes of
                             each are valid, and which outcomes to look at again after that changed
                             in received_signal: rows of signals that it makes itself (follow-ups, parts of a session's signal),
                             and the completion of a signal that waited for its key, so that the count stays exact. It also takes
                             rows out of waiting_signal
episodes and drop_days       generation_count: records of the log without a row, counted as duplicate or dropped
audit and drop_days          ledger_seal: how many generations of a day an audit found in the log or drop_days took out, and the sum of
                             their hashes; ledger_mark: how far in the log these seals go
rewards                      score; behaviour, alarm: statistics of answers per version, and outliers
                             submitter, signal_delay: how much each person said, how long each signal takes
                             vote, vote_pace: who decided a sample, the weight of that vote, how fast votes come
                             heard: what people said of answers that graders call equally good
                             judge_verdict, judge_spend: what judges answered, and what they cost
training                     training_step; training_lease, training_epoch: who may write, and every epoch that was issued
                             version_claim: every version that was cut, with its parent and its epoch
                             doomed: what training will delete or has deleted. A process that points an arm at a version removes
                             the version's row, unless deletion has begun
release                      verdict; sentinel_answer, gate_anchor: answers to the gate's questions, versions to compare with
                             train, train_point: the release trains, and what each look found; train_answer: the answers that a
                             train compares, as the log reports them; webhook_delivery: moves of arms to tell others of
                             shadow_pair: marks of both answers to each prompt of a shadow; error_budget: what may still be risked
release, command line,       train_hold: every time that operators froze the arms, pinned a version, or resumed
and dashboard
release and operators        revocation: versions that never serve, compare or pass the gate again
training, release, operators assignment, assignment_change, weight_snapshot (`millrace keys renew`), by compare-and-set
"""

# isort would write one statement for each name.
# ruff: isort: skip_file

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text

from contracts.tables.base import BIG_SERIAL, MAX_KEY as MAX_KEY, SORTED_ID, SORTED_KEY, metadata as metadata
from contracts.tables.base import given, keys, optional, partial_index, table
from contracts.tables.serving import (
    agent_session as agent_session,
    api_key as api_key,
    assignment as assignment,
    assignment_change as assignment_change,
    dashboard_session as dashboard_session,
    doomed as doomed,
    engine_replica as engine_replica,
    error_budget as error_budget,
    gate_anchor as gate_anchor,
    home_secret as home_secret,
    process_beat as process_beat,
    revocation as revocation,
    sentinel_answer as sentinel_answer,
    shadow_pair as shadow_pair,
    swap as swap,
    train as train,
    train_answer as train_answer,
    train_hold as train_hold,
    train_point as train_point,
    training_epoch as training_epoch,
    training_lease as training_lease,
    training_step as training_step,
    verdict as verdict,
    version_claim as version_claim,
    webhook_delivery as webhook_delivery,
    weight_snapshot as weight_snapshot,
)

position = table(
    "position", *keys(consumer_group=String(64), topic=String(64), partition=Integer), *given(next_offset=BigInteger)
)

log_topic = table(
    "log_topic",
    *keys(topic=String(64)),
    *given(identity=String(64), ends=JSON, seen_at=Float),
    *given("0", num_lost=BigInteger),
    *optional(lost_at=Float),
)

outbox = table(
    "outbox",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("process", String(64), nullable=False, index=True),
    *given(topic=String(64), route=Integer, key=String(128), value=LargeBinary),
    *given("1", num_messages=Integer),
    sqlite_autoincrement=True,  # a reused id could be deleted by a slower relay of the same process
)

dead_letter = table(
    "dead_letter",
    *keys(consumer_group=String(64), topic=String(64), partition=Integer, offset=BigInteger),
    *given(reason=Text, value=LargeBinary, at=Float),
    *optional(key=Text, traceback=Text),
    *given("open", state=String(16)),
    *optional(settled_at=Float),
)

received_signal = table(
    "received_signal",
    *keys(tenant=String(64), id=String(128)),
    *given(body_hash=String(64), received_at=Float),
    *optional(retracted_at=Float),
    *given(record=LargeBinary),
)

rejection_count = table("rejection_count", *keys(reason=String(64)), *given(count=BigInteger))

signal_count = table("signal_count", *keys(state=String(32)), *given(count=BigInteger))

waiting_signal = table(
    "waiting_signal",
    *keys(tenant=String(64), id=String(128)),
    *given(kind=String(16), value=String(MAX_KEY), received_at=Float, record=LargeBinary),
    Index("ix_waiting_signal_value", "value"),
    Index("ix_waiting_signal_received_at", "received_at"),
)

join_key = table(
    "join_key",
    *keys(tenant=String(64), kind=String(16), value=String(MAX_KEY)),
    *given(completion_id=String(64), choice=Integer, at=Float),
    Index("ix_join_key_at", "at"),
)

session_call = table(
    "session_call",
    *keys(tenant=String(64), session_id=String(MAX_KEY), completion_id=SORTED_ID, choice=Integer),
    *optional(parent_id=String(64), parent_choice=Integer),
    *given(task=String(64), is_cut=Boolean, at=Float),
    Index("ix_session_call_at", "at"),
)

IS_LIVE = "purpose <> 'imported'"
"""Written as in the index of windows that close: with a bound purpose the index would not be used."""

generation = table(
    "generation",
    *keys(completion_id=SORTED_ID, choice=Integer),
    *given(partition=Integer, policy=String(64), task=String(64), purpose=String(16), arm=String(16), version=Integer),
    *given(created_at=Float, joined_at=Float),
    *optional(closes_at=Float),
    *given(revision=Integer, state=String(32), state_reason=String(128)),
    *given(state_writer=String(16), state_epoch=Integer, state_revision=Integer),
    *optional(state_version=Integer),
    *given(record=LargeBinary),
    *given("0", state_sequence=BigInteger),
    *optional(tenant=String(64), request=String(32), retry_count=Integer, superseded_by=String(64), offset=BigInteger),
    Index("ix_generation_closes_at", "closes_at"),
    partial_index("ix_generation_live_closes_at", IS_LIVE, "closes_at"),
    Index("ix_generation_created_at", "created_at"),
    partial_index("ix_generation_request", "request IS NOT NULL", "request"),
    partial_index("ix_generation_retry", "retry_count > 0", "request"),
    partial_index("ix_generation_retry_joined_at", "retry_count > 0", "joined_at"),
    Index("ix_generation_state", "state", "version", "state_writer", "state_epoch", "state_sequence", "tenant"),
    Index("ix_generation_tenant", "tenant", "purpose", "completion_id"),
    postgresql_partition_by="RANGE (completion_id)",
)

generation_count = table("generation_count", *keys(state=String(32)), *given(count=BigInteger))

ledger_seal = table(
    "ledger_seal",
    *keys(day=String(10), partition=Integer),
    *given(num=BigInteger, hash=String(16), states=JSON),
    *optional(sealed_at=Float, closed_at=Float),
    *given("0", num_dropped=BigInteger, hash_dropped=String(16)),
    *optional(dropped_at=Float),
)

ledger_mark = table(
    "ledger_mark",
    Column("partition", Integer, primary_key=True, autoincrement=False),
    *given(next_offset=BigInteger, at=Float),
)

IS_HEARD = "signal.reason IN ('', 'superseded')"
"""Signals that were not rejected: the join reads those of an answer, of which there are never many. The words of its index."""
IS_PENDING = "signal.state = 'pending'"

signal = table(
    "signal",
    *keys(completion_id=SORTED_ID, tenant=String(64), id=String(128)),
    *given(choice=Integer, name=String(64), submitter=String(128), at=Float, received_at=Float),
    *given(state=String(16), reason=String(128)),
    *optional(revision=Integer),
    *given(record=LargeBinary),
    Index("ix_signal_received_at", "received_at"),
    Index("ix_signal_state", "state", "tenant"),
    partial_index("ix_signal_heard", "reason IN ('', 'superseded')", "completion_id"),
    partial_index("ix_signal_pending", "state = 'pending'", "state", "received_at"),
    postgresql_partition_by="RANGE (completion_id)",
)

outcome = table(
    "outcome",
    *keys(key=SORTED_KEY, revision=Integer, epoch=Integer, state=String(32)),
    *given(reason=String(128)),
    *optional(version=Integer),
    *given(writer=String(16), at=Float),
    *given("0", sequence=BigInteger),
    Index("ix_outcome_told", "epoch", "sequence", "key"),
    postgresql_partition_by="RANGE (key)",
)

ledger_epoch = table(
    "ledger_epoch",
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    *optional(previous=Integer),
    *given(kept_sequence=BigInteger, valid_through=BigInteger, at=Float),
)

ledger_change = table(
    "ledger_change",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    *given(epoch=Integer, after_sequence=BigInteger, after_key=SORTED_KEY, through_sequence=BigInteger),
)

score = table(
    "score",
    *keys(key=SORTED_KEY, revision=Integer),
    *given(task=String(64), purpose=String(16), version=Integer),
    *optional(reward=Float),
    *given(status=String(16), fault=String(16), components=JSON, at=Float),
    *optional(tenant=String(64)),
    Index("ix_score_at", "at"),
    postgresql_partition_by="RANGE (key)",
)

behaviour = table(
    "behaviour",
    *keys(task=String(64), version=Integer, cluster=String(64), metric=String(64)),
    *given(num=BigInteger, total=Float, squares=Float),
)

alarm = table(
    "alarm",
    *keys(task=String(64), name=String(64), version=Integer, cluster=String(64)),
    *given(at=Float, details=JSON),
)

submitter = table(
    "submitter",
    *keys(tenant=String(64), task=String(64), id=String(128)),
    *given(num=BigInteger, total=Float, window_started_at=Float, window_num=Integer, num_checked=Integer),
    *given(num_agreed=Integer, num_said_good=Integer, num_found_good=Integer),
    *given("0", num_speaking=Integer, num_repeating=Integer),
    *optional(edits=LargeBinary),
)

vote = table(
    "vote",
    *keys(key=SORTED_KEY),
    *given(submitter=String(128), value=Float, weight=Float, reason=String(32)),
    *optional(reward=Float),
    *given(offset=Float, counted=JSON, at=Float),
    *given("", evidence=String(64)),
    Index("ix_vote_at", "at"),
)

heard = table(
    "heard",
    *keys(task=String(64), task_hash=String(12), cohort=BigInteger, bucket=Integer, asked=Integer),
    *given(num_answers=BigInteger, num_heard=BigInteger, total=Float),
)

vote_pace = table(
    "vote_pace",
    *keys(task=String(64), cluster=String(64), side=String(8)),
    *given(bucket=BigInteger, num=BigInteger, num_buckets=Float, total=Float, squares=Float),
    *given(quarantined_until=BigInteger, cleared=BigInteger),
)

signal_delay = table(
    "signal_delay", *keys(task=String(64), name=String(64), cohort=BigInteger, bucket=Integer), *given(num=BigInteger)
)

judge_verdict = table(
    "judge_verdict",
    *keys(key=String(64)),
    *given(judge=String(64), answer=JSON, at=Float),
    Index("ix_judge_verdict_at", "at"),
)

judge_spend = table(
    "judge_spend",
    *keys(task=String(64), judge=String(64), day=String(10)),
    *given(num_calls=BigInteger, num_tokens=BigInteger, money=Float),
)
