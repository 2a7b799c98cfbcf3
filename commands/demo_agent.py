"""`millrace demo-agent`: a support agent with tools over HTTP learns from how its sessions end, which customers say later.

In: a seed. Out: a table and <home>/summary.json, with the demo's figures and those of sessions. Waits for: as the demo.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from commands import queries
from commands.demo import PRODUCT, DemoHomeOption, KeepOption, ProfileOption, SeedOption, SmokeOption, run_demo
from commands.demo_product import DemoProduct
from commands.demo_summary import SMOKE_GOALS, DemoGoals
from commands.engines import choose_engine
from commands.options import DeviceOption
from contracts.turns import count_rows
from examples.support.evaluate import evaluate
from examples.support.sentinels import write_sentinels

AGENT_SECONDS = 230.0
AGENT_GOALS = DemoGoals(accuracy=0.90, accepted=0.90, seconds_to_most=math.inf, versions=5, seconds=300.0)
AGENT_TRAINING = {"learning_rate": 4e-4, "batch_size": 24, "publish_samples": 192, "publish_seconds": 8.0}
"""About seven sessions in a step: there is one bit of reward for about three answers. Sixteen places serve four customers a second."""


def demo_agent(
    *,
    seed: SeedOption = 1,
    seconds: Annotated[float, typer.Option(help="How long customers come.")] = AGENT_SECONDS,
    home: DemoHomeOption = None,
    keep: KeepOption = False,
    device: DeviceOption = "cpu",
    smoke: SmokeOption = False,
    profile: ProfileOption = "embedded",
) -> int:
    """Watch an agent learn from the ends of its sessions: a shop's support with six tools, from four of ten solved to nine.

    Exit status 0 if every goal was met.
    """
    product = AGENT._replace(seconds=seconds)
    chosen = choose_engine("millrace", None, 2)
    return run_demo(product, chosen, seed=seed, home=home, keep=keep, device=device, smoke=smoke, profile=profile)


def session_figures(connection: Connection) -> dict[str, Any]:
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
    write_sentinels=write_sentinels,
    evaluate=evaluate,
    goals=AGENT_GOALS,
    smoke_goals=SMOKE_GOALS,
    training=AGENT_TRAINING,
    seconds=AGENT_SECONDS,
    num_users=16,
    pace=4.0,
    further=session_figures,
)
