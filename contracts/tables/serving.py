"""Tables of training, release and engine, of API keys and dashboard sessions."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, LargeBinary, String, Text

from contracts.tables.base import BIG_SERIAL, SORTED_KEY, given, keys, optional, table

training_step = table("training_step", *keys(epoch=Integer, step=Integer), *given(at=Float, metrics=JSON))

verdict = table(
    "verdict",
    *keys(policy=String(64), version=Integer),
    *given(accepted=Boolean),
    *optional(accuracy=Float, best_accuracy=Float),
    *given(reason=Text, details=JSON, at=Float),
)

sentinel_answer = table(
    "sentinel_answer",
    *keys(policy=String(64), version=Integer, sentinels_hash=String(16)),
    *given(draw=Integer),
    *keys(position=Integer),
    *given(answer=JSON, at=Float),
)

gate_anchor = table(
    "gate_anchor", *keys(policy=String(64), task=String(64), version=Integer), *given(at=Float, reason=Text)
)

train = table(
    "train",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    Column("policy", String(64), nullable=False, index=True),
    *given(version=Integer, blessed=Integer, state=String(16), stage=Integer, epoch=BigInteger),
    *given(started_at=Float, stage_at=Float),
    *optional(ended_at=Float),
    *given(reason=Text, settings=JSON, evidence=JSON),
)

train_answer = table(
    "train_answer",
    *keys(key=SORTED_KEY),
    *given(policy=String(64), arm=String(16), version=Integer, compared_with=Integer),
    *given(task=String(64), unit=String(32), unit_kind=String(8)),
    *given("", cluster=String(64)),
    *given(sampling=String(16), probability=Float, at=Float, metrics=JSON),
    *optional(reward=Float),
    *given("", status=String(16)),
    *optional(scored_at=Float),
    *given("0", revision=Integer),
    *given(changed=BigInteger),
    *given("", tenant=String(64), api_key=String(32)),
    Index("ix_train_answer_changed", "policy", "changed"),
    Index("ix_train_answer_at", "at"),
)

shadow_pair = table(
    "shadow_pair",
    Column("train", BigInteger, primary_key=True, autoincrement=False),
    *keys(key=SORTED_KEY),
    *given(unit=String(32), canary=JSON, live=JSON, left_out=String(64)),
)

error_budget = table(
    "error_budget",
    *keys(policy=String(64), part=String(16)),
    *given(per_year=Float, left=Float, at=Float, name=String(128), level=Float, epoch=BigInteger),
)

train_point = table("train_point", *keys(policy=String(64), subject=String(32), at=Float), *given(values=JSON))

train_hold = table(
    "train_hold",
    *keys(policy=String(64), epoch=BigInteger),
    *given(kind=String(8)),
    *optional(version=Integer, until=Float),
    *given(writer=String(64), reason=Text, at=Float),
    *optional(live_epoch=BigInteger),
)

webhook_delivery = table(
    "webhook_delivery",
    *keys(id=String(64), url=Text),
    *given(policy=String(64), content=JSON, at=Float, num_tries=Integer, next_at=Float),
    *optional(delivered_at=Float),
    *given("", problem=Text),
)

swap = table(
    "swap",
    Column("id", BIG_SERIAL, primary_key=True, autoincrement=True),
    *given(policy=String(64), arm=String(16), version=Integer, at=Float, stage_seconds=Float, pause_seconds=Float),
    *optional(gap_seconds=Float, num_changed=BigInteger, density=Float, payload_bytes=BigInteger),
    *given("", replica=String(64)),
)

assignment = table(
    "assignment",
    *keys(policy=String(64), arm=String(16)),
    *optional(version=Integer),
    *given(share=Float, epoch=BigInteger, writer=String(32), reason=Text, at=Float),
    *optional(root=String(64), run=Text),
)

assignment_change = table(
    "assignment_change",
    *keys(policy=String(64), arm=String(16), epoch=BigInteger),
    *optional(version=Integer),
    *given(share=Float, writer=String(32), reason=Text, at=Float),
    *optional(root=String(64), run=Text),
)

engine_replica = table(
    "engine_replica",
    *keys(policy=String(64), name=String(64)),
    *given(url=Text, kind=String(16), region=String(64), status=String(16), slots=JSON, abilities=JSON),
    *given(instance=String(64), engine=String(128), dtype=String(16), seen_at=Float),
    *given("", run=Text, base=String(64)),
    *given("{}", problems=JSON),
)

process_beat = table(
    "process_beat",
    *keys(policy=String(64), process=String(32), replica=String(64)),
    *given(at=Float, step_at=Float, longest_step_seconds=Float),
)

weight_snapshot = table("weight_snapshot", *keys(policy=String(64)), *given(sequence=BigInteger, text=LargeBinary))

revocation = table(
    "revocation",
    *keys(policy=String(64), version=Integer),
    *given(treatment=String(16), writer=String(32), reason=Text, at=Float),
)

training_lease = table("training_lease", *keys(policy=String(64)), *given(epoch=Integer, holder=JSON, renewed_at=Float))

training_epoch = table("training_epoch", *keys(policy=String(64), epoch=Integer), *given(holder=JSON, issued_at=Float))

version_claim = table(
    "version_claim",
    *keys(policy=String(64), version=Integer),
    *given(parent=Integer, epoch=Integer),
    *optional(root=String(64)),
    *given(claimed_at=Float),
)

doomed = table(
    "doomed",
    *keys(policy=String(64), kind=String(16), name=String(128)),
    *given(epoch=Integer, going=Boolean, at=Float),
)

dashboard_session = table(
    "dashboard_session",
    *keys(id_hash=String(64)),
    *given(role=String(16), name=String(64), csrf=String(64), started_at=Float, used_at=Float),
    *optional(key_id=String(32)),
)

agent_session = table(
    "agent_session",
    *keys(id=String(32)),
    *given(tenant=String(64), key_id=String(32), secret_hash=String(64), task=String(64)),
    *optional(group_name=String(64), max_calls=BigInteger, max_tokens=BigInteger, max_seconds=Float),
    *given("0", num_calls=BigInteger, num_tokens=BigInteger),
    *given(created_at=Float),
    Column("expires_at", Float, nullable=False, index=True),
    *optional(ended_at=Float),
)

api_key = table(
    "api_key",
    *keys(id=String(32)),
    *given(secret_hash=String(64), role=String(16), tenant=String(64), created_at=Float),
    *given("", scopes=String(128), name=String(64)),
    *optional(expires_at=Float, revoked_at=Float),
)

home_secret = table("home_secret", *keys(name=String(16)), *given(value=String(64)))
