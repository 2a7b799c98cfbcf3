"""Policies that lie in the repository: what the demo's goals are measured on, and what is made from sources beside it."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from examples.demo.command import DEMO_SECONDS, NUM_SENTINELS, NUM_USERS, NUM_VISITS
from tests.clients.policy_digest import MARK
from tests.clients.policy_digest import digest as digest_of_the_clients

PRODUCT = Path("examples/reservations")
FILES = ("users.py", "../pace.py", "sentences.py", "phrases.py", "sentinels.jsonl", "base")
FROZEN = "cd08630dc1ed480d005e05558e4376a9"


def test_users_base_and_pace_of_the_demo_are_those_of_its_goals() -> None:
    digest = blake2b(f"{NUM_USERS} {NUM_VISITS} {DEMO_SECONDS} {NUM_SENTINELS}".encode(), digest_size=16)
    for name in FILES:
        path = PRODUCT / name
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    assert digest.hexdigest() == FROZEN, (
        "the demo's users, base or pace changed: measure its goals again, then update this"
    )


def test_the_policy_of_the_clients_is_what_its_sources_make() -> None:
    assert MARK.read_text() == digest_of_the_clients(), "make it anew: python -m tests.clients.policy"
