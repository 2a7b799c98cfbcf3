"""Attacks on release trains by clients that choose their users' names: computing the draw, and telling the arms apart.

In: nothing. Out: what got through. Waits for: nothing.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from contracts.arms import draw_arm, read_arm_secret
from contracts.assignments import CANARY, LIVE, Assignment
from runtime.database import Database
from runtime.days import migrate
from services.inference.arms import choose_arm
from tests.adversary.attacks.attack import Attack
from tests.adversary.choosing import STRATEGIES, Attacker, end_of

_SHARE, _TRIED, _MOST = 0.01, 20_000, 0.05
ARMS = {arm: Assignment("p", arm, version, share, 1) for arm, version, share in ((LIVE, 4, 1.0), (CANARY, 5, _SHARE))}


def attacks() -> list[Attack]:
    """See the module docstring."""
    return [
        Attack("names that are computed to land in a canary of 1%", compute_names),
        *(
            Attack(f"a tenant with a tenth of the requests {name}", partial(decide_a_train, name))
            for name in STRATEGIES
        ),
    ]


def compute_names() -> str | None:
    """The code is public, and so is every salt; the secret is this home's."""
    with tempfile.TemporaryDirectory(prefix="millrace-attack-") as folder:
        database = Database(f"sqlite:///{Path(folder) / 'millrace.db'}")
        migrate(database)
        with database.snapshot() as connection:
            secret = read_arm_secret(connection)
        database.close()
    names = [f"default/user {number}" for number in range(_TRIED)]
    chosen = [name for name in names if draw_arm(ARMS, name, b"").arm == CANARY]
    landed = sum(choose_arm(ARMS, "p", unit=name, secret=secret).name == CANARY for name in chosen)
    return f"{landed} of {len(chosen)} names landed" if landed > _MOST * len(chosen) else None


def decide_a_train(name: str) -> str | None:
    """The same train of the same honest people, with and without it."""
    product, choose = STRATEGIES[name]
    alone = end_of("3 tenants", product, 0, None)
    attacked = end_of("3 tenants", product, 0, Attacker(0, choose))
    return None if alone[0] == attacked[0] else f"{attacked[0]}, not {alone[0]}: {attacked[1]}"
