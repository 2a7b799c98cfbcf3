"""What the Rewards page asks the database. A new figure is an entry of `read_figures` and a place in `templates/rewards.html`.

Long tables are walked from their newest row, at most `MAX_LOOKED` rows, and only these are counted. People are counted: no name and no text
of a person is read.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Row, Subquery, case, func, or_, select

from contracts.tables import alarm, behaviour, generation, judge_spend, judge_verdict, score, submitter, vote
from contracts.tables.statements import among
from services.dashboard.rewards import figures
from services.dashboard.rewards.figures import PREFIXES, REWARD, SHARES, JudgeCost, Spending, Versions

MAX_LOOKED = 20_000
MAX_VERSIONS = 60
MAX_TASKS = 200
MAX_ALARMS = 100
MAX_FAULTS = 500
"""Scores with a fault whose parts are looked at one by one."""
MAX_REFUSED = 2_000
MAX_PEOPLE = 100_000
_BUSIEST = 100

NUM_DAYS = 7
"""Days of spending that are summed, today included."""
NO_REWARD = ("unlabelled", "unscored")
HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0


class TimeWindow(NamedTuple):
    """What counts of the last day and `hour` cover, from these UTC epoch seconds on."""

    since: float
    hour: float
    most: int = MAX_LOOKED
    """Newest rows that are looked at, of all tenants."""
    tenant: str | None = None
    """Whose rows among these are counted; None: all tenants'."""


class TaskCount(NamedTuple):
    """A number of answers to users of one task. (name, detail) is (status, fault) of scores, or (state, reason) of generations."""

    task: str
    name: str
    detail: str
    num_hour: int
    num: int


class TaskCounts(NamedTuple):
    """`is_cut`: there were more rows than were looked at."""

    rows: list[TaskCount]
    is_cut: bool

    def of(self, task: str) -> list[TaskCount]:
        """The counts of one task."""
        return [row for row in self.rows if row.task == task]


class Voters(NamedTuple):
    """People who vote. `busiest_share`: the share of votes by the busiest hundredth of people; None without a vote."""

    num_people: int
    num_votes: int
    num_busiest: int
    busiest_share: float | None
    num_checked: int
    is_cut: bool


class DiscountedVotes(NamedTuple):
    """Votes that counted less than others, for one reason."""

    reason: str
    num: int
    num_people: int


def read_figures(
    connection: Connection, task: str, window: TimeWindow, states: TaskCounts, now: float
) -> dict[str, Any]:
    """Every figure of one task, by the name under which the template prints it. `states`: see `count_states`."""
    scores, answers = count_scores(connection, window), states.of(task)
    found = {
        "scores": scores.of(task),
        "is_cut": scores.is_cut or states.is_cut,
        "max_looked": MAX_LOOKED,
        "num_answers": sum(row.num for row in answers),
        "without": [row for row in answers if row.name in NO_REWARD],
        "filtered": [row for row in answers if row.name == "filtered"],
        "faulty": figures.part_faults(list_faults(connection, task, window)),
        "max_faults": MAX_FAULTS,
        "voices": read_voters(connection, task, tenant=window.tenant),
        "max_people": MAX_PEOPLE,
        "refused": count_discounted(connection, task, window.since, window.tenant),
        "max_refused": MAX_REFUSED,
    }
    return found | (_read_shared(connection, task, now) if window.tenant is None else {})


def _read_shared(connection: Connection, task: str, now: float) -> dict[str, Any]:
    """Sums over all tenants, for operators only: these tables do not tell tenants apart."""
    versions = read_versions(connection, task)
    parts = figures.parts_of(versions)
    rows = figures.version_rows(versions, parts)
    ends = (time.gmtime(now - days * DAY_SECONDS) for days in (0, NUM_DAYS - 1))
    today, first = (time.strftime("%Y-%m-%d", day) for day in ends)
    return {
        "parts": parts,
        "versions": rows,
        "columns": figures.columns_of(rows, parts),
        "alarms": [(row, figures.alarm_sentence(row.details)) for row in list_alarms(connection, task)],
        "judges": read_judges(connection, task, first, today),
        "num_days": NUM_DAYS,
    }


def list_tasks(connection: Connection) -> list[str]:
    """All known tasks; each costs one step in the index."""
    tasks = [""]
    while len(tasks) <= MAX_TASKS:
        following = select(func.min(behaviour.c.task)).where(behaviour.c.task > tasks[-1])
        if (found := connection.execute(following).scalar_one_or_none()) is None:
            break
        tasks.append(found)
    return tasks[1:]


def read_versions(connection: Connection, task: str) -> Versions:
    """The newest versions of a task, over all its prompts."""
    columns = behaviour.c
    newest = select(columns.version).where(columns.task == task).distinct().order_by(columns.version.desc())
    found: Versions = {number: {} for number in connection.execute(newest.limit(MAX_VERSIONS)).scalars()}
    if not found:
        return {}
    wanted = or_(columns.metric.in_((REWARD, *SHARES)), *(columns.metric.startswith(prefix) for prefix in PREFIXES))
    mine = (columns.task == task, columns.version >= min(found), columns.cluster == "", wanted)
    for row in connection.execute(select(*columns["version", "metric", "num", "total"]).where(*mine)):
        found[row.version][row.metric] = (row.num, row.total)
    return found


def count_scores(connection: Connection, window: TimeWindow) -> TaskCounts:
    """Scores by status and fault."""
    return _counts(connection, score.c.at, (score.c.status, score.c.fault), window)


def count_states(connection: Connection, window: TimeWindow) -> TaskCounts:
    """Answers by state and reason."""
    names = (generation.c.state, generation.c.state_reason)
    return _counts(connection, generation.c.created_at, names, window)


def list_faults(connection: Connection, task: str, window: TimeWindow) -> list[Any]:
    """Fault and components of the newest scores with a fault."""
    looked = _newest(score.c.at, window, score.c.key, score.c.revision, score.c.task, score.c.fault)
    wanted = (looked.c.task == task, looked.c.fault != "none", looked.c.purpose == "user", *_mine(looked, window))
    newest = select(looked.c.key, looked.c.revision).where(*wanted).order_by(looked.c.at.desc()).limit(MAX_FAULTS)
    names = {(row.key, row.revision) for row in connection.execute(newest)}
    if not names:
        return []
    columns = score.c["key", "revision", "fault", "components"]
    held = select(*columns).where(among(connection, score.c.key, {key for key, _ in names}))
    return [row for row in connection.execute(held) if (row.key, row.revision) in names]


def list_alarms(connection: Connection, task: str) -> list[Row[Any]]:
    """name, version, cluster, at, details; newest first. The table stays short, because a version raises few alarms."""
    newest = (alarm.c.at.desc(), alarm.c.version.desc(), alarm.c.name, alarm.c.cluster)
    mine = select(*alarm.c["name", "version", "cluster", "at", "details"]).where(alarm.c.task == task)
    return list(connection.execute(mine.order_by(*newest).limit(MAX_ALARMS)))


def read_judges(connection: Connection, task: str, first: str, today: str) -> list[JudgeCost]:
    """The cost of each judge of a task since the day `first`, by name. Days are YYYY-MM-DD, UTC.

    Kept verdicts are counted among the newest `MAX_LOOKED` of all tasks: a verdict does not name its task.
    """
    costs = judge_spend.c["num_calls", "num_tokens", "money"]
    sums = [func.sum(case((judge_spend.c.day == today, cost), else_=0)) for cost in costs]
    sums += [func.sum(cost) for cost in costs]
    spent = select(judge_spend.c.judge, *sums).where(judge_spend.c.task == task, judge_spend.c.day >= first)
    rows = [tuple(row) for row in connection.execute(spent.group_by(judge_spend.c.judge).order_by(judge_spend.c.judge))]
    looked = select(judge_verdict.c.judge).order_by(judge_verdict.c.at.desc()).limit(MAX_LOOKED).subquery()
    counted = select(looked.c.judge, func.count().label("num")).group_by(looked.c.judge)
    kept = {row.judge: row.num for row in connection.execute(counted)} if rows else {}
    return [JudgeCost(row[0], Spending(*row[1:4]), Spending(*row[4:]), kept.get(row[0], 0)) for row in rows]


def read_voters(connection: Connection, task: str, most: int = MAX_PEOPLE, tenant: str | None = None) -> Voters:
    """The voters of a task, among the first `most` rows of the table or of a tenant: no index contains the task.

    The row without a name sums all people and is left out.
    """
    columns = submitter.c
    walk = select(columns.task, columns.id, columns.num, columns.num_checked)
    if tenant is not None:
        walk = walk.where(columns.tenant == tenant)
    looked = walk.order_by(*submitter.primary_key.columns).limit(most).subquery()
    of_task = (looked.c.task == task, looked.c.id != "", looked.c.num > 0)
    sums = select(
        func.count().label("num_people"),
        func.coalesce(func.sum(looked.c.num), 0).label("num_votes"),
        func.coalesce(func.sum(case((looked.c.num_checked > 0, 1), else_=0)), 0).label("num_checked"),
    )
    found = connection.execute(sums.where(*of_task)).one()
    num_busiest, num_votes = math.ceil(found.num_people / _BUSIEST), int(found.num_votes)
    busiest = select(looked.c.num).where(*of_task).order_by(looked.c.num.desc()).limit(num_busiest).subquery()
    said = connection.execute(select(func.coalesce(func.sum(busiest.c.num), 0))).scalar_one()
    share = int(said) / num_votes if num_votes else None
    num_looked = connection.execute(select(func.count()).select_from(looked)).scalar_one()
    return Voters(found.num_people, num_votes, num_busiest, share, int(found.num_checked), is_cut=num_looked == most)


def count_discounted(
    connection: Connection, task: str, since: float, tenant: str | None = None
) -> list[DiscountedVotes]:
    """Reasons why votes counted less, most frequent first: of the newest `MAX_REFUSED` such votes, or of a tenant's among them."""
    columns = vote.c
    walk = select(columns.key, columns.submitter, columns.reason, columns.at).where(columns.at >= since)
    looked = walk.order_by(columns.at.desc()).limit(MAX_LOOKED).subquery()
    newest = select(looked).where(looked.c.reason != "").order_by(looked.c.at.desc()).limit(MAX_REFUSED)
    refused = list(connection.execute(newest))
    if not refused:
        return []
    of_refused = among(connection, score.c.key, {row.key for row in refused})
    ours = select(score.c.key).where(of_refused, score.c.revision == 1, score.c.task == task)
    if tenant is not None:
        ours = ours.where(score.c.tenant == tenant)
    keys = set(connection.execute(ours).scalars())
    people: dict[str, list[str]] = defaultdict(list)
    for row in refused:
        if row.key in keys:
            people[row.reason].append(row.submitter)
    counts = [DiscountedVotes(reason, len(names), len(set(names))) for reason, names in people.items()]
    return sorted(counts, key=lambda count: (-count.num, count.reason))


def _counts(connection: Connection, at: Column[float], names: Sequence[Column[str]], window: TimeWindow) -> TaskCounts:
    table = at.table
    looked = _newest(at, window, table.c.task, *names)
    groups = [looked.c[column.name] for column in (table.c.task, table.c.purpose, *names)]
    num_hour, num = func.sum(case((looked.c.at >= window.hour, 1), else_=0)), func.count()
    counted = select(*groups, num_hour, num).where(*_mine(looked, window)).group_by(*groups)
    rows = [tuple(row) for row in connection.execute(counted)]
    num_looked = connection.execute(select(func.count()).select_from(looked)).scalar_one()
    counts = [TaskCount(row[0], row[2], row[3], int(row[4]), row[5]) for row in rows if row[1] == "user"]
    return TaskCounts(sorted(counts, key=lambda count: (-count.num, *count)), num_looked == window.most)


def _newest(at: Column[float], window: TimeWindow, *columns: ColumnElement[Any]) -> Subquery:
    """The newest rows of all kinds: however rare the wanted rows are, the index on time is walked no further."""
    tenant = [] if window.tenant is None else [at.table.c.tenant]
    walk = select(*columns, *tenant, at.table.c.purpose, at.label("at")).where(at >= window.since)
    return walk.order_by(at.desc()).limit(window.most).subquery()


def _mine(looked: Subquery, window: TimeWindow) -> list[ColumnElement[bool]]:
    return [] if window.tenant is None else [looked.c.tenant == window.tenant]
