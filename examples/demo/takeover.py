"""`millrace demo-takeover`: a provider that is good and dear answers; an own model learns from its log, and takes over.

In: a seed. Out: as the demo, with `own_share` and both arms side by side. Waits for: as the demo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from sqlalchemy import Connection

from commands.engines import choose_engine
from commands.options import DeviceOption
from examples.demo import queries
from examples.demo.command import (
    DEMO_SECONDS,
    DEMO_SLOTS,
    DEMO_TRAIN,
    DEMO_TRAINING,
    RESERVATIONS,
    DemoHomeOption,
    DemoOptions,
    KeepOption,
    ProfileOption,
    SeedOption,
    SmokeOption,
    StrictOption,
    run_demo,
)
from examples.demo.provider import INPUT_PRICE, MODEL, OUTPUT_PRICE, provider_process
from examples.demo.summary import DemoGoals
from examples.demo.two_arms import OWN, PROVIDER, ArmFigures, arms_of, broken_goals, first_shares, own_share
from runtime.settings import make_section
from services.engine.settings import EngineSettings
from services.provider import ProviderSettings

TAKEOVER_GOALS = DemoGoals(
    accuracy=0.95, accepted=0.92, answers_to_most=None, versions=3, seconds=360.0, gain_seconds=40.0
)
LEARNING = "[learning]\nrl = 0.0\nce = 1.0\npair = 0.1\n"
"""Edits, and what users accepted, are targets: a provider's answers have no tokens, so their rewards teach nothing."""
TAKEOVER_TRAINING = {**DEMO_TRAINING, "publish_samples": 240, "publish_seconds": 45.0}
"""Few versions: no user has one that is not proven, so nobody waits for the next one."""
TAKEOVER_TRAIN = {**DEMO_TRAIN, "stages": (0.05, 0.2, 0.5), "stage_units": 5, "margin": 0.15}
"""Without 1%: of sixteen answers a second that would be one in six seconds."""
MACHINE_DOLLARS = 0.10
"""What two cores cost in an hour at a cloud. The own model pays for the machine while users are there, learning included."""


def demo_takeover(
    *,
    seed: SeedOption = 1,
    seconds: Annotated[float, typer.Option(help="How long users work at most.")] = DEMO_SECONDS,
    home: DemoHomeOption = None,
    keep: KeepOption = False,
    device: DeviceOption = "cpu",
    smoke: SmokeOption = False,
    strict: StrictOption = False,
    profile: ProfileOption = "embedded",
) -> int:
    """Watch an own small model take over from a provider: it learns from the provider's log, and is proven against it on users.

    Exit status 0 if every promise was kept: no failed request, a balanced ledger, nothing served ungated; at the end the own model answers 95% of
    the users, who accept as much as before, at a lower price.
    """
    chosen = choose_engine("millrace", None, 2)
    chosen = chosen._replace(own=make_section("[engine]", EngineSettings, slots=DEMO_SLOTS))
    with provider_process(seed) as url:
        front = ProviderSettings(
            url=url,
            model=MODEL,
            dialects=("chat",),
            may_train=True,
            input_price=INPUT_PRICE,
            output_price=OUTPUT_PRICE,
        )
        product = TAKEOVER._replace(seconds=seconds, provider=front)
        return run_demo(product, chosen, DemoOptions(seed, home, keep, device, smoke, strict, profile))


def figures_of_both(connection: Connection, clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`own_share`, and the figures of both arms."""
    times = [float(item["at"]) for item in clients if item["kind"] == "generation"]
    hours = (max(times) - min(times)) / 3600 if times else 0.0
    dollars = {PROVIDER: queries.provider_dollars(connection), OWN: MACHINE_DOLLARS * hours}
    begins, ends = first_shares(clients)
    return {
        "own_share": round(own_share(clients), 4),
        "own_first_seconds": begins,
        "provider_last_seconds": ends,
        "arms": {name: figures._asdict() for name, figures in arms_of(clients, dollars).items()},
    }


def closing_words(summary: Mapping[str, Any]) -> str:
    """What became of the provider."""
    arms = {name: ArmFigures(**summary["arms"][name]) for name in (PROVIDER, OWN)}
    says = [f"{name.capitalize():9}{_words(figures)}" for name, figures in arms.items()]
    last = f"At the end the own model answers {summary['own_share']:.1%} of the users."
    begins, ends = summary["own_first_seconds"], summary["provider_last_seconds"]
    if None not in {begins, ends}:
        last += (
            f" It met the first of them after {begins:.0f} s, and the provider's last answer came after {ends:.0f} s."
        )
    return "\n".join([*says, last])


def _words(figures: ArmFigures) -> str:
    if figures.accepted is None or figures.seconds_p50 is None or figures.seconds_p95 is None:
        return f"{figures.answers:5,} answers"
    cost = figures.dollars_per_accepted
    return (
        f"{figures.answers:5,} answers, users accept {figures.accepted:.1%}; {figures.seconds_p50 * 1000:,.0f} ms (p50), "
        f"{figures.seconds_p95 * 1000:,.0f} ms (p95); {'no cost known' if cost is None else f'${1000 * cost:.3f}'} for 1,000 accepted answers"
    )


TAKEOVER = RESERVATIONS._replace(
    name="takeover",
    goals=TAKEOVER_GOALS,
    training=TAKEOVER_TRAINING,
    train=TAKEOVER_TRAIN,
    further=figures_of_both,
    learning=LEARNING,
    broken=broken_goals,
    closing=closing_words,
)
