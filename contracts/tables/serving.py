"""Tables of training, release, engine, and of whoever signs in."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from contracts.tables.base import BIG_SERIAL, metadata

training_step = Table(
    "training_step",
    metadata,
    Column("epoch", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
)

verdict = Table(
    "verdict",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("accepted", Boolean, nullable=False),
    Column("accuracy", Float),
    Column("best_accuracy", Float),
    Column("reason", Text, nullable=False),
    Column("details", JSON, nullable=False),
    Column("at", Float, nullable=False),
)

sentinel_answer = Table(
    "sentinel_answer",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("sentinels_hash", String(16), primary_key=True),
    Column("draw", Integer, nullable=False),
    Column("position", Integer, primary_key=True),
    Column("answer", JSON, nullable=False),
    Column("at", Float, nullable=False),
)

gate_anchor = Table(
    "gate_anchor",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("task", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("reason", Text, nullable=False),
)

swap = Table(
    "swap",
    metadata,
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
)

assignment = Table(
    "assignment",
    metadata,
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

assignment_change = Table(
    "assignment_change",
    metadata,
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

weight_snapshot = Table(
    "weight_snapshot",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("text", LargeBinary, nullable=False),
)

revocation = Table(
    "revocation",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("treatment", String(16), nullable=False),
    Column("writer", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Float, nullable=False),
)

training_lease = Table(
    "training_lease",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("holder", JSON, nullable=False),
    Column("renewed_at", Float, nullable=False),
)

training_epoch = Table(
    "training_epoch",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("holder", JSON, nullable=False),
    Column("issued_at", Float, nullable=False),
)

version_claim = Table(
    "version_claim",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("parent", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("root", String(64)),
    Column("claimed_at", Float, nullable=False),
)

doomed = Table(
    "doomed",
    metadata,
    Column("policy", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("going", Boolean, nullable=False),
    Column("at", Float, nullable=False),
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
    Column("key_id", String(32)),
)

api_key = Table(
    "api_key",
    metadata,
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
