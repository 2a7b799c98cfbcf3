"""What judges remember between batches, in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import select

from contracts.tables import judge_spend, judge_verdict
from contracts.tables.statements import add_all, among, delete_free, insert_all_new
from rewards.judges.budget import JudgeCosts
from rewards.judges.parse import JudgeVerdict
from runtime.database import Database

_AT_ONCE = 2_000


class DatabaseStore:
    """See `JudgeStore`. Each call is its own transaction. Every method raises Unavailable while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def verdicts(self, keys: Collection[str]) -> dict[str, JudgeVerdict]:
        """See `JudgeStore`."""
        if not keys:
            return {}
        with self._database.snapshot() as connection:
            found = select(judge_verdict.c.key, judge_verdict.c.answer).where(
                among(connection, judge_verdict.c.key, keys)
            )
            return {row.key: JudgeVerdict(**row.answer) for row in connection.execute(found)}

    def keep(self, judge: str, verdicts: Mapping[str, JudgeVerdict], at: float) -> None:
        """See `JudgeStore`."""
        rows = [
            {"key": key, "judge": judge, "answer": verdict._asdict(), "at": at} for key, verdict in verdicts.items()
        ]
        if rows:
            with self._database.transaction(gives_way=True) as connection:
                insert_all_new(connection, judge_verdict, rows)

    def forget(self, judge: str, before: float) -> None:
        """See `JudgeStore`."""
        is_old = (judge_verdict.c.at < before, judge_verdict.c.judge == judge)
        num = _AT_ONCE
        while num == _AT_ONCE:
            with self._database.transaction(gives_way=True) as connection:
                num = delete_free(connection, judge_verdict, *is_old, limit=_AT_ONCE)

    def spent(self, task: str, judge: str, day: str) -> JudgeCosts:
        """See `JudgeStore`."""
        table = judge_spend.c
        statement = select(table.num_calls, table.num_tokens, table.money).where(
            table.task == task, table.judge == judge, table.day == day
        )
        with self._database.snapshot() as connection:
            row = connection.execute(statement).one_or_none()
        return JudgeCosts(*row) if row else JudgeCosts()

    def spend(self, task: str, judge: str, day: str, spent: JudgeCosts) -> None:
        """See `JudgeStore`."""
        with self._database.transaction(gives_way=True) as connection:
            add_all(connection, judge_spend, [{"task": task, "judge": judge, "day": day, **spent._asdict()}])
