"""Tables of the reward worker: scores, behaviour, people, judges."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Float, Index, Integer, String

from contracts.tables.base import SORTED_KEY, given, keys, optional, table

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
