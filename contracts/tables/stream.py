"""Tables of the workers on the log: positions, outboxes, the join and the ledger."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text, text

from contracts.tables.base import BIG_SERIAL, MAX_KEY, SORTED_ID, SORTED_KEY, table

position = table(
    "position",
    Column("consumer_group", String(64), primary_key=True),
    Column("topic", String(64), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
)

log_topic = table(
    "log_topic",
    Column("topic", String(64), primary_key=True),
    Column("identity", String(64), nullable=False),
    Column("ends", JSON, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("num_lost", BigInteger, nullable=False, server_default="0"),
    Column("lost_at", Float),
)

outbox = table(
    "outbox",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("process", String(64), nullable=False, index=True),
    Column("topic", String(64), nullable=False),
    Column("route", Integer, nullable=False),
    Column("key", String(128), nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("num_messages", Integer, nullable=False, server_default="1"),
    sqlite_autoincrement=True,  # a reused id could be deleted by a slower relay of the same process
)

dead_letter = table(
    "dead_letter",
    Column("consumer_group", String(64), primary_key=True),
    Column("topic", String(64), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("offset", BigInteger, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("at", Float, nullable=False),
    Column("key", Text),
    Column("traceback", Text),
    Column("state", String(16), nullable=False, server_default="open"),
    Column("settled_at", Float),
)

received_signal = table(
    "received_signal",
    Column("tenant", String(64), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("received_at", Float, nullable=False),
    Column("retracted_at", Float),
    Column("record", LargeBinary, nullable=False),
)

rejection_count = table(
    "rejection_count",
    Column("reason", String(64), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

signal_count = table(
    "signal_count",
    Column("state", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

waiting_signal = table(
    "waiting_signal",
    Column("tenant", String(64), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("value", String(MAX_KEY), nullable=False),
    Column("received_at", Float, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Index("ix_waiting_signal_value", "value"),
    Index("ix_waiting_signal_received_at", "received_at"),
)

join_key = table(
    "join_key",
    Column("tenant", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("value", String(MAX_KEY), primary_key=True),
    Column("completion_id", String(64), nullable=False),
    Column("choice", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_join_key_at", "at"),
)

session_call = table(
    "session_call",
    Column("tenant", String(64), primary_key=True),
    Column("session_id", String(MAX_KEY), primary_key=True),
    Column("completion_id", SORTED_ID, primary_key=True),
    Column("choice", Integer, primary_key=True),
    Column("parent_id", String(64)),
    Column("parent_choice", Integer),
    Column("task", String(64), nullable=False),
    Column("is_cut", Boolean, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_session_call_at", "at"),
)

generation = table(
    "generation",
    Column("completion_id", SORTED_ID, primary_key=True),
    Column("choice", Integer, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("policy", String(64), nullable=False),
    Column("task", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("arm", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("joined_at", Float, nullable=False),
    Column("closes_at", Float),
    Column("revision", Integer, nullable=False),
    Column("state", String(32), nullable=False),
    Column("state_reason", String(128), nullable=False),
    Column("state_writer", String(16), nullable=False),
    Column("state_epoch", Integer, nullable=False),
    Column("state_revision", Integer, nullable=False),
    Column("state_version", Integer),
    Column("record", LargeBinary, nullable=False),
    Column("state_sequence", BigInteger, nullable=False, server_default="0"),
    Column("tenant", String(64)),
    Column("request", String(32)),
    Column("retry_count", Integer),
    Column("superseded_by", String(64)),
    Column("offset", BigInteger),
    Index("ix_generation_closes_at", "closes_at"),
    Index("ix_generation_created_at", "created_at"),
    Index(
        "ix_generation_request",
        "request",
        sqlite_where=text("request IS NOT NULL"),
        postgresql_where=text("request IS NOT NULL"),
    ),
    Index(
        "ix_generation_retry",
        "request",
        sqlite_where=text("retry_count > 0"),
        postgresql_where=text("retry_count > 0"),
    ),
    Index(
        "ix_generation_retry_joined_at",
        "joined_at",
        sqlite_where=text("retry_count > 0"),
        postgresql_where=text("retry_count > 0"),
    ),
    Index("ix_generation_state", "state", "version", "state_writer", "state_epoch", "state_sequence", "tenant"),
    Index("ix_generation_tenant", "tenant", "purpose", "completion_id"),
    postgresql_partition_by="RANGE (completion_id)",
)

generation_count = table(
    "generation_count",
    Column("state", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

ledger_seal = table(
    "ledger_seal",
    Column("day", String(10), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("num", BigInteger, nullable=False),
    Column("hash", String(16), nullable=False),
    Column("states", JSON, nullable=False),
    Column("sealed_at", Float),
    Column("closed_at", Float),
    Column("num_dropped", BigInteger, nullable=False, server_default="0"),
    Column("hash_dropped", String(16), nullable=False, server_default="0"),
    Column("dropped_at", Float),
)

ledger_mark = table(
    "ledger_mark",
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
)

IS_HEARD = "signal.reason IN ('', 'superseded')"
"""Signals that were not rejected: the join reads those of an answer, of which there are never many. The words of its index."""
IS_PENDING = "signal.state = 'pending'"

signal = table(
    "signal",
    Column("completion_id", SORTED_ID, primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("choice", Integer, nullable=False),
    Column("name", String(64), nullable=False),
    Column("submitter", String(128), nullable=False),
    Column("at", Float, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(128), nullable=False),
    Column("revision", Integer),
    Column("record", LargeBinary, nullable=False),
    Index("ix_signal_received_at", "received_at"),
    Index("ix_signal_state", "state", "tenant"),
    Index(
        "ix_signal_heard",
        "completion_id",
        sqlite_where=text("reason IN ('', 'superseded')"),
        postgresql_where=text("reason IN ('', 'superseded')"),
    ),
    Index(
        "ix_signal_pending",
        "state",
        "received_at",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    postgresql_partition_by="RANGE (completion_id)",
)

outcome = table(
    "outcome",
    Column("key", SORTED_KEY, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("state", String(32), primary_key=True),
    Column("reason", String(128), nullable=False),
    Column("version", Integer),
    Column("writer", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("sequence", BigInteger, nullable=False, server_default="0"),
    Index("ix_outcome_told", "epoch", "sequence", "key"),
    postgresql_partition_by="RANGE (key)",
)

ledger_epoch = table(
    "ledger_epoch",
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("previous", Integer),
    Column("kept_sequence", BigInteger, nullable=False),
    Column("valid_through", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
)

ledger_change = table(
    "ledger_change",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("epoch", Integer, nullable=False),
    Column("after_sequence", BigInteger, nullable=False),
    Column("after_key", SORTED_KEY, nullable=False),
    Column("through_sequence", BigInteger, nullable=False),
)
