"""Tables of the reward worker: scores, behaviour, people, judges."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, PrimaryKeyConstraint, String, Table

from contracts.tables.base import SORTED_KEY, metadata

score = Table(
    "score",
    metadata,
    Column("key", SORTED_KEY, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("task", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("reward", Float),
    Column("status", String(16), nullable=False),
    Column("fault", String(16), nullable=False),
    Column("components", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Column("tenant", String(64)),
    PrimaryKeyConstraint("key", "revision"),
    Index("ix_score_at", "at"),
    postgresql_partition_by="RANGE (key)",
)

behaviour = Table(
    "behaviour",
    metadata,
    Column("task", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("metric", String(64), nullable=False),
    Column("num", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("squares", Float, nullable=False),
    PrimaryKeyConstraint("task", "version", "cluster", "metric"),
)

alarm = Table(
    "alarm",
    metadata,
    Column("task", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("details", JSON, nullable=False),
    PrimaryKeyConstraint("task", "name", "version", "cluster"),
)

submitter = Table(
    "submitter",
    metadata,
    Column("tenant", String(64), nullable=False),
    Column("task", String(64), nullable=False),
    Column("id", String(128), nullable=False),
    Column("num", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("window_started_at", Float, nullable=False),
    Column("window_num", Integer, nullable=False),
    Column("num_checked", Integer, nullable=False),
    Column("num_agreed", Integer, nullable=False),
    Column("num_said_good", Integer, nullable=False),
    Column("num_found_good", Integer, nullable=False),
    PrimaryKeyConstraint("tenant", "task", "id"),
)

vote = Table(
    "vote",
    metadata,
    Column("key", SORTED_KEY, primary_key=True),
    Column("submitter", String(128), nullable=False),
    Column("value", Float, nullable=False),
    Column("weight", Float, nullable=False),
    Column("reason", String(32), nullable=False),
    Column("reward", Float),
    Column("offset", Float, nullable=False),
    Column("counted", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Column("evidence", String(64), nullable=False, server_default=""),
    Index("ix_vote_at", "at"),
)

heard = Table(
    "heard",
    metadata,
    Column("task", String(64), nullable=False),
    Column("task_hash", String(12), nullable=False),
    Column("cohort", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("num_answers", BigInteger, nullable=False),
    Column("num_heard", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    PrimaryKeyConstraint("task", "task_hash", "cohort", "bucket", "asked"),
)

vote_pace = Table(
    "vote_pace",
    metadata,
    Column("task", String(64), nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("side", String(8), nullable=False),
    Column("bucket", BigInteger, nullable=False),
    Column("num", BigInteger, nullable=False),
    Column("num_buckets", Float, nullable=False),
    Column("total", Float, nullable=False),
    Column("squares", Float, nullable=False),
    Column("quarantined_until", BigInteger, nullable=False),
    Column("cleared", BigInteger, nullable=False),
    PrimaryKeyConstraint("task", "cluster", "side"),
)

signal_delay = Table(
    "signal_delay",
    metadata,
    Column("task", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("cohort", BigInteger, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("num", BigInteger, nullable=False),
    PrimaryKeyConstraint("task", "name", "cohort", "bucket"),
)

judge_verdict = Table(
    "judge_verdict",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("judge", String(64), nullable=False),
    Column("answer", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_judge_verdict_at", "at"),
)

judge_spend = Table(
    "judge_spend",
    metadata,
    Column("task", String(64), nullable=False),
    Column("judge", String(64), nullable=False),
    Column("day", String(10), nullable=False),
    Column("num_calls", BigInteger, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("money", Float, nullable=False),
    PrimaryKeyConstraint("task", "judge", "day"),
)
