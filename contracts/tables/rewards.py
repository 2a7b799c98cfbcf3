"""Tables of the reward worker: scores, behaviour, people, judges."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, String

from contracts.tables.base import SORTED_KEY, table

score = table(
    "score",
    Column("key", SORTED_KEY, primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("task", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("reward", Float),
    Column("status", String(16), nullable=False),
    Column("fault", String(16), nullable=False),
    Column("components", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Column("tenant", String(64)),
    Index("ix_score_at", "at"),
    postgresql_partition_by="RANGE (key)",
)

behaviour = table(
    "behaviour",
    Column("task", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("cluster", String(64), primary_key=True),
    Column("metric", String(64), primary_key=True),
    Column("num", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("squares", Float, nullable=False),
)

alarm = table(
    "alarm",
    Column("task", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("cluster", String(64), primary_key=True),
    Column("at", Float, nullable=False),
    Column("details", JSON, nullable=False),
)

submitter = table(
    "submitter",
    Column("tenant", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("id", String(128), primary_key=True),
    Column("num", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
    Column("window_started_at", Float, nullable=False),
    Column("window_num", Integer, nullable=False),
    Column("num_checked", Integer, nullable=False),
    Column("num_agreed", Integer, nullable=False),
    Column("num_said_good", Integer, nullable=False),
    Column("num_found_good", Integer, nullable=False),
)

vote = table(
    "vote",
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

heard = table(
    "heard",
    Column("task", String(64), primary_key=True),
    Column("task_hash", String(12), primary_key=True),
    Column("cohort", BigInteger, primary_key=True),
    Column("bucket", Integer, primary_key=True),
    Column("asked", Integer, primary_key=True),
    Column("num_answers", BigInteger, nullable=False),
    Column("num_heard", BigInteger, nullable=False),
    Column("total", Float, nullable=False),
)

vote_pace = table(
    "vote_pace",
    Column("task", String(64), primary_key=True),
    Column("cluster", String(64), primary_key=True),
    Column("side", String(8), primary_key=True),
    Column("bucket", BigInteger, nullable=False),
    Column("num", BigInteger, nullable=False),
    Column("num_buckets", Float, nullable=False),
    Column("total", Float, nullable=False),
    Column("squares", Float, nullable=False),
    Column("quarantined_until", BigInteger, nullable=False),
    Column("cleared", BigInteger, nullable=False),
)

signal_delay = table(
    "signal_delay",
    Column("task", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("cohort", BigInteger, primary_key=True),
    Column("bucket", Integer, primary_key=True),
    Column("num", BigInteger, nullable=False),
)

judge_verdict = table(
    "judge_verdict",
    Column("key", String(64), primary_key=True),
    Column("judge", String(64), nullable=False),
    Column("answer", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_judge_verdict_at", "at"),
)

judge_spend = table(
    "judge_spend",
    Column("task", String(64), primary_key=True),
    Column("judge", String(64), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("num_calls", BigInteger, nullable=False),
    Column("num_tokens", BigInteger, nullable=False),
    Column("money", Float, nullable=False),
)
