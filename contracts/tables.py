"""Every table. Owners: one process writes a table's rows, others only read them (docs/decisions/0001).

position, outbox, dead_letter   every worker, its own rows
received_signal, signal_count   feedback; of received_signal episodes writes two things, so that the count stays exact: rows
                                of signals that it makes itself (follow-ups), and in a row of a signal that waited for its
                                key, whom it is about
generation, signal, outcome     episodes (the join and the ledger)
generation_count                episodes (duplicate) and whoever drops days (dropped): records of the log without a row
score                           rewards
behaviour, alarm                rewards: sums per version of what answers are like, and what stands out
submitter, signal_delay         rewards: how much each person said, how long each signal takes
vote, vote_pace                 rewards: who decided a sample and what that weighed, how fast votes come
judge_verdict, judge_spend      rewards: what judges answered and cost
join_key                        episodes: which answer an app's own key (kind `key`), or a `session`, means: the newest
waiting_signal                  feedback adds, episodes takes: signals whose key no answer has yet
training_step                   training
verdict                         release
swap                            engine
assignment, assignment_change   training (candidate), release and operators, by compare-and-set
api_key                         the command line
dashboard_session               dashboard
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

MAX_KEY = 256
"""Characters of a join key or of a session that signals may be about."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
_BIG_SERIAL = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY counts up by itself in SQLite

# Completion ids begin with their time, so their order is that of time: days are ranges of them (contracts/partitions.py).
_SORTED_ID = String(64).with_variant(String(64, collation="C"), "postgresql")
_SORTED_KEY = String(128).with_variant(String(128, collation="C"), "postgresql")

position = Table(
    "position",
    metadata,
    Column("consumer_group", String(64), nullable=False),
    Column("topic", String(64), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    PrimaryKeyConstraint("consumer_group", "topic", "partition"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("process", String(64), nullable=False, index=True),
    Column("topic", String(64), nullable=False),
    Column("route", Integer, nullable=False),
    Column("key", String(128), nullable=False),
    Column("value", LargeBinary, nullable=False),
    sqlite_autoincrement=True,  # an id that was used again could be deleted by a slower relay of the same process
)

dead_letter = Table(
    "dead_letter",
    metadata,
    Column("consumer_group", String(64), nullable=False),
    Column("topic", String(64), nullable=False),
    Column("partition", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("consumer_group", "topic", "partition", "offset"),
)

received_signal = Table(
    "received_signal",
    metadata,
    Column("tenant", String(64), nullable=False),
    Column("id", String(128), nullable=False),
    Column("body_hash", String(64), nullable=False),
    Column("received_at", Float, nullable=False),
    Column("retracted_at", Float),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
)

signal_count = Table(
    "signal_count",
    metadata,
    Column("state", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

generation = Table(
    "generation",
    metadata,
    Column("completion_id", _SORTED_ID, nullable=False),
    Column("choice", Integer, nullable=False),
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
    PrimaryKeyConstraint("completion_id", "choice"),
    Index("ix_generation_closes_at", "closes_at"),
    Index("ix_generation_created_at", "created_at"),
    Index("ix_generation_state", "state", "version", "state_writer", "state_epoch"),
    postgresql_partition_by="RANGE (completion_id)",
)

generation_count = Table(
    "generation_count",
    metadata,
    Column("state", String(32), primary_key=True),
    Column("count", BigInteger, nullable=False),
)

# A signal whose key no answer ever had is about no completion: its `completion_id` is empty.
signal = Table(
    "signal",
    metadata,
    Column("completion_id", _SORTED_ID, nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("id", String(128), nullable=False),
    Column("choice", Integer, nullable=False),
    Column("name", String(64), nullable=False),
    Column("submitter", String(128), nullable=False),
    Column("at", Float, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(128), nullable=False),
    Column("revision", Integer),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("completion_id", "tenant", "id"),
    Index("ix_signal_received_at", "received_at"),
    Index("ix_signal_state", "state"),
    postgresql_partition_by="RANGE (completion_id)",
)

outcome = Table(
    "outcome",
    metadata,
    Column("key", _SORTED_KEY, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("state", String(32), nullable=False),
    Column("reason", String(128), nullable=False),
    Column("version", Integer),
    Column("writer", String(16), nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("key", "revision", "epoch", "state"),
    Index("ix_outcome_epoch", "epoch"),
    postgresql_partition_by="RANGE (key)",
)

score = Table(
    "score",
    metadata,
    Column("key", _SORTED_KEY, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("task", String(64), nullable=False),
    Column("purpose", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("reward", Float),
    Column("status", String(16), nullable=False),
    Column("fault", String(16), nullable=False),
    Column("components", JSON, nullable=False),
    Column("at", Float, nullable=False),
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
    Column("key", _SORTED_KEY, primary_key=True),
    Column("submitter", String(128), nullable=False),
    Column("value", Float, nullable=False),
    Column("weight", Float, nullable=False),
    Column("reason", String(32), nullable=False),
    Column("reward", Float),
    Column("offset", Float, nullable=False),
    Column("counted", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Index("ix_vote_at", "at"),
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

join_key = Table(
    "join_key",
    metadata,
    Column("tenant", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", String(MAX_KEY), nullable=False),
    Column("completion_id", String(64), nullable=False),
    Column("choice", Integer, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("tenant", "kind", "value"),
    Index("ix_join_key_at", "at"),
)

waiting_signal = Table(
    "waiting_signal",
    metadata,
    Column("tenant", String(64), nullable=False),
    Column("id", String(128), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", String(MAX_KEY), nullable=False),
    Column("received_at", Float, nullable=False),
    Column("record", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant", "id"),
    Index("ix_waiting_signal_value", "value"),
)

training_step = Table(
    "training_step",
    metadata,
    Column("epoch", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
    PrimaryKeyConstraint("epoch", "step"),
)

verdict = Table(
    "verdict",
    metadata,
    Column("policy", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("accepted", Boolean, nullable=False),
    Column("accuracy", Float),
    Column("best_accuracy", Float),
    Column("reason", Text, nullable=False),
    Column("details", JSON, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("policy", "version"),
)

swap = Table(
    "swap",
    metadata,
    Column("id", _BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("policy", String(64), nullable=False),
    Column("arm", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("stage_seconds", Float, nullable=False),
    Column("pause_seconds", Float, nullable=False),
    Column("gap_seconds", Float),
    Column("num_changed", BigInteger),
    Column("density", Float),
    Column("payload_bytes", BigInteger),
)

assignment = Table(
    "assignment",
    metadata,
    Column("policy", String(64), nullable=False),
    Column("arm", String(16), nullable=False),
    Column("version", Integer),
    Column("share", Float, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("policy", "arm"),
)

assignment_change = Table(
    "assignment_change",
    metadata,
    Column("policy", String(64), nullable=False),
    Column("arm", String(16), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("version", Integer),
    Column("share", Float, nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    PrimaryKeyConstraint("policy", "arm", "epoch"),
)

dashboard_session = Table(
    "dashboard_session",
    metadata,
    Column("id_hash", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(64), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
)

api_key = Table(
    "api_key",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
)
