"""`millrace policy freeze|pin|resume|holdout|provider`: an operator decides what does not move, who stays behind, and who gets a provider."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from commands.operators import WRITER, ReasonOption, moving_arms
from commands.options import DEFAULT_HOME, HomeOption
from contracts import holdout as held_out
from contracts import holds, rollback
from contracts.errors import InvalidValue
from runtime.settings import load_settings
from weights.stores.opening import open_weight_store

_FOR = "How long: a number and s, m, h or d, for example 2h; at most 30d."


def freeze(
    home: HomeOption = DEFAULT_HOME,
    *,
    duration: Annotated[str | None, typer.Option("--for", help=f"{_FOR} Default: until `resume`.")] = None,
    reason: ReasonOption = "frozen by an operator",
) -> None:
    """Keep every arm as it is: the gate waits, the train stands still. A rollback still goes through."""
    settings, now = load_settings(home), time.time()
    until = None if duration is None else now + holds.seconds_of(duration)
    with moving_arms(settings) as connection:
        hold = holds.freeze(connection, policy=settings.policy, until=until, writer=WRITER, reason=reason, now=now)
    print(hold.words)


def pin(
    version: Annotated[int, typer.Argument(help="Version that everybody gets.")],
    duration: Annotated[str, typer.Option("--for", help=_FOR)],
    home: HomeOption = DEFAULT_HOME,
    *,
    reason: ReasonOption = "pinned by an operator",
) -> None:
    """Give everybody one version for a while: a running train ends, no version is revoked, and nothing moves until the end."""
    settings, now = load_settings(home), time.time()
    until = now + holds.seconds_of(duration)
    open_weight_store(settings).manifest(settings.policy, version)
    with moving_arms(settings) as connection:
        hold = holds.pin(
            connection, policy=settings.policy, version=version, until=until, writer=WRITER, reason=reason, now=now
        )
    print(f"{hold.words}; users of the hold-out, if there is one, keep theirs")


def resume(home: HomeOption = DEFAULT_HOME, reason: ReasonOption = "resumed by an operator") -> None:
    """End a freeze or a pin. The arms stay where they are until the gate and the train go on."""
    settings = load_settings(home)
    with moving_arms(settings) as connection:
        held = holds.resume(connection, policy=settings.policy, writer=WRITER, reason=reason)
    print(
        "the arms move again"
        if held.version is None
        else f"v{held.version} is no longer pinned; it stays live until a train arrives"
    )


def holdout(
    version: Annotated[int | None, typer.Argument(help="Version that the hold-out gets.")] = None,
    home: HomeOption = DEFAULT_HOME,
    *,
    share: Annotated[float | None, typer.Option(help="Share of the users: 0.01 to 0.05 is right for most.")] = None,
    off: Annotated[bool, typer.Option("--off", help="End the hold-out.")] = False,
    reason: ReasonOption = "hold-out set by an operator",
) -> None:
    """Keep a share of the users on a version, so that the lift over it is measured; or end that."""
    settings = load_settings(home)
    if off != (version is None) or off != (share is None):
        raise InvalidValue("give a version and --share, or only --off", param="version")
    asked = {"policy": settings.policy, "writer": WRITER, "reason": reason}
    if version is None or share is None:
        with moving_arms(settings) as connection:
            held_out.end_holdout(connection, **asked)
        print("there is no hold-out any more: its users get what everybody gets")
        return
    open_weight_store(settings).manifest(settings.policy, version)
    with moving_arms(settings) as connection:
        held_out.set_holdout(connection, version=version, share=share, **asked)
    print(f"{share:.1%} of the users stay on v{version}")
    low, high = held_out.RECOMMENDED
    if share < low:
        print(f"below {low:.0%} it takes very long to measure a lift")
    elif share > high:
        print(f"above {high:.0%} many people miss every improvement")


def provider(
    share: Annotated[float, typer.Argument(help="Part of the users, 0 to 1; the live version gets the others.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    reason: ReasonOption = "provider's share set by an operator",
) -> None:
    """Give the provider in front a share of the users: 1 goes back to it, 0 goes over to the live version. A running train ends."""
    settings = load_settings(home)
    asked = {"policy": settings.policy, "writer": WRITER, "reason": reason}
    with moving_arms(settings) as connection:
        rollback.set_provider_share(connection, share=share, **asked)
    print(f"{share:.1%} of the users get the provider's answers")
