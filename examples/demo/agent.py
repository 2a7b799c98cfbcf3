"""`millrace demo-agent`: a support agent with tools over HTTP learns from how its sessions end, which customers say later.

In: a seed. Out: as the demo, with figures of sessions. Waits for: as the demo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from commands.engines import choose_engine
from commands.options import DeviceOption
from contracts.turns import count_rows
from examples.demo import queries
from examples.demo.command import (
    PRODUCT,
    DemoHomeOption,
    DemoOptions,
    KeepOption,
    ProfileOption,
    SeedOption,
    SmokeOption,
    StrictOption,
    run_demo,
)
from examples.demo.product import DemoProduct
from examples.demo.summary import DemoGoals
from examples.support.evaluate import evaluate
from examples.support.sentinels import NUM_SENTINELS, write_sentinels

AGENT_SECONDS = 320.0
NUM_CUSTOMERS = 900
AGENT_GOALS = DemoGoals(accuracy=0.90, accepted=0.90, answers_to_most=None, versions=5, seconds=300.0)
AGENT_TRAINING = {"learning_rate": 4e-4, "batch_size": 24, "publish_samples": 192, "publish_seconds": 8.0}
"""About seven sessions in a step: there is one bit of reward for about three answers. Sixteen places serve four customers a second."""


def demo_agent(
    *,
    seed: SeedOption = 1,
    seconds: Annotated[float, typer.Option(help="How long customers come at most.")] = AGENT_SECONDS,
    home: DemoHomeOption = None,
    keep: KeepOption = False,
    device: DeviceOption = "cpu",
    smoke: SmokeOption = False,
    strict: StrictOption = False,
    profile: ProfileOption = "embedded",
) -> int:
    """Watch an agent learn from the ends of its sessions: a shop's support with six tools, from four of ten solved to nine.

    Exit status 0 if every promise was kept: no failed request, a balanced ledger, no version served ungated, a better agent.
    """
    product = AGENT._replace(seconds=seconds)
    chosen = choose_engine("millrace", None, 2)
    return run_demo(product, chosen, DemoOptions(seed, home, keep, device, smoke, strict, profile))


def session_figures(connection: Connection, _clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows of each session, calls that were rendered anew, and tokens that need not be computed twice.

    The agent changes nothing in its conversations, so every break but a session's first call is unexplained.
    """
    sessions = queries.session_calls(connection)
    counted = count_rows([call for calls in sessions.values() for call in calls])
    breaks = {name: number for name, number in counted.branches.items() if name != "first"}
    return {
        "sessions": len(sessions),
        "calls_per_session": round(counted.calls / len(sessions), 2) if sessions else None,
        "rows_per_session": round(counted.rows / len(sessions), 4) if sessions else None,
        "breaks_unexplained": sum(breaks.values()),
        "breaks": breaks,
        "tokens_saved": round(counted.saved, 4),
    }


AGENT = DemoProduct(
    name="support",
    folder=PRODUCT.parent / "support",
    num_sentinels=NUM_SENTINELS,
    write_sentinels=write_sentinels,
    evaluate=evaluate,
    goals=AGENT_GOALS,
    training=AGENT_TRAINING,
    seconds=AGENT_SECONDS,
    num_users=16,
    visits=NUM_CUSTOMERS,
    answers_per_visit=3.3,
    further=session_figures,
)
