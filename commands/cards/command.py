"""`millrace gpus`: which card works for whom, since when and why, whether it is well, and what comes next. In: cards.json. Changes nothing."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from commands.cards.locks import card_problem
from commands.cards.records import FILE, PoolRecord, read_record
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from runtime.settings import load_settings

_USES = ("users", "training", "rollouts", "nobody")


def gpus(
    home: HomeOption = DEFAULT_HOME,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> None:
    """Show which card works for whom, since when and why, and what comes next."""
    settings, record = load_settings(home), read_record(home)
    if record is None:
        raise InvalidSettings(
            f"{home / FILE} does not exist: write pool = [0, 1] under [gpu] in millrace.toml, and start `millrace up`"
        )
    found = described(
        record, {item.card: card_problem(settings.device, item.card) for item in record.cards}, runs=_runs(home)
    )
    if as_json:
        print(json.dumps(found))
        return
    console = Console(soft_wrap=True)
    table = Table("works for", "card", "for", "well", "why")
    for row in found["cards"]:
        table.add_row(
            row["use"], str(row["card"]), _duration(time.time() - row["since"]), row["problem"] or "yes", row["why"]
        )
    for use in found["without"]:
        table.add_row(use, "none", "", "", "no card is given to them yet" if use == "rollouts" else "")
    console.print(table)
    for line in (
        found["moving"],
        f"next: {found['next']}" if found["next"] else "",
        "" if found["runs"] else "Millrace does not run here now",
    ):
        if line:
            console.print(line, markup=False)


def described(record: PoolRecord, problems: dict[int, str], *, runs: bool) -> dict[str, Any]:
    """What is printed. `problems`: of each card, empty if it is well. `runs`: whether Millrace runs in this home."""
    cards = sorted(record.cards, key=lambda item: (_USES.index(item.use), item.card))
    move = record.move
    return {
        "cards": [
            {"card": item.card, "use": item.use, "since": item.since, "why": item.why, "problem": problems[item.card]}
            for item in cards
        ],
        "without": [use for use in _USES[:3] if use not in {item.use for item in cards}],
        "moving": "" if move is None else f"card {move.card} is on its way to {move.to}: {move.why}",
        "next": record.next,
        "runs": runs,
    }


def _runs(home: Path) -> bool:
    try:
        with (home / "up.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _duration(seconds: float) -> str:
    minutes = int(max(0.0, seconds)) // 60
    return f"{minutes // 60} h {minutes % 60} min"
