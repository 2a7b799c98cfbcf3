"""Receipts that no server wrote: changed, cut, prolonged, for another answer, tenant, signal or person, signed with a guess."""

from __future__ import annotations

import random
import secrets
import string
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.errors import ReceiptInvalid
from contracts.ids import new_completion_id
from services.feedback.receipts import Receipt, read_receipt, write_receipt
from tests.adversary.attacks.attack import Attack

NUM_FORGERIES = 100_000


@dataclass
class Forger:
    """Holds genuine receipts, which every page shows its user, and does not know the secret."""

    chance: random.Random
    secret: bytes

    def genuine(self) -> tuple[Receipt, str]:
        """One of its own."""
        held = Receipt("tenant", new_completion_id(), 0, ("accepted",), int(time.time()) + 3600)
        return held, write_receipt(held, self.secret)

    def flipped(self) -> str:
        """One bit of it changed; a receipt is ASCII, so that the text stays one."""
        text = bytearray(self.genuine()[1].encode())
        text[self.chance.randrange(len(text))] ^= 1 << self.chance.randrange(7)
        return text.decode()

    def cut(self) -> str:
        """Its beginning, or its end, or nothing."""
        text = self.genuine()[1]
        place = self.chance.randrange(1, len(text))
        return self.chance.choice((text[:place], text[place:], "", ".", text.rpartition(".")[0] + "."))

    def rewritten(self) -> str:
        """Another payload before the code of a genuine one."""
        held, text = self.genuine()
        changes: list[dict[str, Any]] = [
            {"completion_id": new_completion_id()}, {"expires_at": held.expires_at + 86_400}, {"tenant": "victim"},
            {"signals": ("accepted", "edited")}, {"choice": 1}, {"submitter": "somebody"},
        ]  # fmt: skip
        return f"{_signed(msgspec.structs.replace(held, **self.chance.choice(changes)))}.{text.rpartition('.')[2]}"

    def guessed(self) -> str:
        """Signed with a secret of one's own: random, empty, or zeros."""
        own = self.chance.choice((secrets.token_bytes(32), b"", bytes(32)))
        return write_receipt(self.genuine()[0], own)

    def spelled(self) -> str:
        """The genuine bytes in other letters: padding, spaces, another version, another alphabet."""
        text = self.genuine()[1]
        return self.chance.choice((text + "=", f" {text}", text + "\n", f"r2{text[2:]}", text.upper(), f"{text}.", text.replace(".", ".\u0430")))  # fmt: skip

    def spliced(self) -> str:
        """The payload of one and the code of another."""
        return f"{self.genuine()[1].rpartition('.')[0]}.{self.genuine()[1].rpartition('.')[2]}"

    def made_up(self) -> str:
        """Letters."""
        return "r1." + "".join(self.chance.choices(string.printable, k=self.chance.randrange(200)))


def forge(num: int, seed: int = 0) -> tuple[int, list[str]]:
    """Try so many. Returns how many were tried, and those that were accepted."""
    forger = Forger(random.Random(seed), secrets.token_bytes(32))
    ways: tuple[Callable[[], str], ...] = (
        forger.flipped, forger.cut, forger.rewritten, forger.guessed, forger.spelled, forger.spliced, forger.made_up,
    )  # fmt: skip
    accepted = [text for place in range(num) if _is_read(text := ways[place % len(ways)](), forger.secret)]
    return num, accepted


def attacks() -> list[Attack]:
    """See `attack.py`."""
    return [Attack(f"{NUM_FORGERIES:,} forged receipts", lambda: "; ".join(forge(NUM_FORGERIES)[1]) or None, 7)]


def _is_read(text: str, secret: bytes) -> bool:
    try:
        read_receipt(text, secret)
    except ReceiptInvalid:
        return False
    return True


def _signed(receipt: Receipt) -> str:
    return "r1." + urlsafe_b64encode(msgspec.msgpack.encode(receipt)).decode().rstrip("=")
