"""Tables of training, release and engine, of API keys and dashboard sessions."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text

from contracts.tables.base import BIG_SERIAL, SORTED_KEY, table

training_step = table(
    "training_step",
    Column("epoch", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
)

verdict = table(
    "verdict",
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("accepted", Boolean, nullable=False),
    Column("accuracy", Float),
    Column("best_accuracy", Float),
    Column("reason", Text, nullable=False),
    Column("details", JSON, nullable=False),
    Column("at", Float, nullable=False),
)

sentinel_answer = table(
    "sentinel_answer",
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sentinels_hash", String(16), primary_key=True),
    Column("draw", Integer, nullable=False),
    Column("position", Integer, primary_key=True),
    Column("answer", JSON, nullable=False),
    Column("at", Float, nullable=False),
)

gate_anchor = table(
    "gate_anchor",
    Column("policy", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("reason", Text, nullable=False),
)

train = table(
    "train",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("policy", String(64), nullable=False, index=True),
    Column("version", Integer, nullable=False),
    Column("blessed", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("stage", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("stage_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("reason", Text, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("evidence", JSON, nullable=False),
)

train_answer = table(
    "train_answer",
    Column("key", SORTED_KEY, primary_key=True),
    Column("policy", String(64), nullable=False),
    Column("arm", String(16), nullable=False),
    Column("version", Integer, nullable=False),
    Column("compared_with", Integer, nullable=False),
    Column("task", String(64), nullable=False),
    Column("unit", String(32), nullable=False),
    Column("unit_kind", String(8), nullable=False),
    Column("cluster", String(64), nullable=False, server_default=""),
    Column("sampling", String(16), nullable=False),
    Column("probability", Float, nullable=False),
    Column("at", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("reward", Float),
    Column("status", String(16), nullable=False, server_default=""),
    Column("scored_at", Float),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("changed", BigInteger, nullable=False),
    Column("tenant", String(64), nullable=False, server_default=""),
    Column("api_key", String(32), nullable=False, server_default=""),
    Index("ix_train_answer_changed", "policy", "changed"),
    Index("ix_train_answer_at", "at"),
)

shadow_pair = table(
    "shadow_pair",
    Column("train", BigInteger, primary_key=True, autoincrement=False),
    Column("key", SORTED_KEY, primary_key=True),
    Column("unit", String(32), nullable=False),
    Column("canary", JSON, nullable=False),
    Column("live", JSON, nullable=False),
    Column("left_out", String(64), nullable=False),
)

error_budget = table(
    "error_budget",
    Column("policy", String(64), primary_key=True),
    Column("part", String(16), primary_key=True),
    Column("per_year", Float, nullable=False),
    Column("left", Float, nullable=False),
    Column("at", Float, nullable=False),
    Column("name", String(128), nullable=False),
    Column("level", Float, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)

train_point = table(
    "train_point",
    Column("policy", String(64), primary_key=True),
    Column("subject", String(32), primary_key=True),
    Column("at", Float, primary_key=True),
    Column("values", JSON, nullable=False),
)

train_hold = table(
    "train_hold",
    Column("policy", String(64), primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("kind", String(8), nullable=False),
    Column("version", Integer),
    Column("until", Float),
    Column("writer", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("live_epoch", BigInteger),
)

webhook_delivery = table(
    "webhook_delivery",
    Column("id", String(64), primary_key=True),
    Column("url", Text, primary_key=True),
    Column("policy", String(64), nullable=False),
    Column("content", JSON, nullable=False),
    Column("at", Float, nullable=False),
    Column("num_tries", Integer, nullable=False),
    Column("next_at", Float, nullable=False),
    Column("delivered_at", Float),
    Column("problem", Text, nullable=False, server_default=""),
)

swap = table(
    "swap",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
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
    Column("replica", String(64), nullable=False, server_default=""),
)

assignment = table(
    "assignment",
    Column("policy", String(64), primary_key=True),
    Column("arm", String(16), primary_key=True),
    Column("version", Integer),
    Column("share", Float, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("root", String(64)),
    Column("run", Text),
)

assignment_change = table(
    "assignment_change",
    Column("policy", String(64), primary_key=True),
    Column("arm", String(16), primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("version", Integer),
    Column("share", Float, nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
    Column("root", String(64)),
    Column("run", Text),
)

engine_replica = table(
    "engine_replica",
    Column("policy", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("url", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("region", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("slots", JSON, nullable=False),
    Column("abilities", JSON, nullable=False),
    Column("instance", String(64), nullable=False),
    Column("engine", String(128), nullable=False),
    Column("dtype", String(16), nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("run", Text, nullable=False, server_default=""),
    Column("base", String(64), nullable=False, server_default=""),
    Column("problems", JSON, nullable=False, server_default="{}"),
)

process_beat = table(
    "process_beat",
    Column("policy", String(64), primary_key=True),
    Column("process", String(32), primary_key=True),
    Column("replica", String(64), primary_key=True),
    Column("at", Float, nullable=False),
    Column("step_at", Float, nullable=False),
    Column("longest_step_seconds", Float, nullable=False),
)

weight_snapshot = table(
    "weight_snapshot",
    Column("policy", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("text", LargeBinary, nullable=False),
)

revocation = table(
    "revocation",
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("treatment", String(16), nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
)

training_lease = table(
    "training_lease",
    Column("policy", String(64), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("holder", JSON, nullable=False),
    Column("renewed_at", Float, nullable=False),
)

training_epoch = table(
    "training_epoch",
    Column("policy", String(64), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("holder", JSON, nullable=False),
    Column("issued_at", Float, nullable=False),
)

version_claim = table(
    "version_claim",
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("parent", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("root", String(64)),
    Column("claimed_at", Float, nullable=False),
)

doomed = table(
    "doomed",
    Column("policy", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("going", Boolean, nullable=False),
    Column("at", Float, nullable=False),
)

dashboard_session = table(
    "dashboard_session",
    Column("id_hash", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("name", String(64), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("key_id", String(32)),
)

agent_session = table(
    "agent_session",
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("key_id", String(32), nullable=False),
    Column("secret_hash", String(64), nullable=False),
    Column("task", String(64), nullable=False),
    Column("group_name", String(64)),
    Column("max_calls", BigInteger),
    Column("max_tokens", BigInteger),
    Column("max_seconds", Float),
    Column("num_calls", BigInteger, nullable=False, server_default="0"),
    Column("num_tokens", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Column("ended_at", Float),
)

api_key = table(
    "api_key",
    Column("id", String(32), primary_key=True),
    Column("secret_hash", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("scopes", String(128), nullable=False, server_default=""),
    Column("name", String(64), nullable=False, server_default=""),
    Column("expires_at", Float),
    Column("revoked_at", Float),
)

home_secret = table(
    "home_secret",
    Column("name", String(16), primary_key=True),
    Column("value", String(64), nullable=False),
)
