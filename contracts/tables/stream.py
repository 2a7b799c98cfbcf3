"""Tables of the workers on the log: positions, outboxes, the join and the ledger."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text

from contracts.tables.base import (
    BIG_SERIAL,
    MAX_KEY,
    SORTED_ID,
    SORTED_KEY,
    given,
    keys,
    optional,
    partial_index,
    table,
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
