"""Who holds which card, on disk: written before anything is done, so that the next start can end what a kill cut off.

<home>/cards.json     one `PoolRecord`. While a move is under way it says so: whoever starts then gives the card to its new holder at once,
                      since no process of the old one is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from commands.cards.policy import CardUse
from contracts.errors import InvalidSettings
from contracts.files import read_small
from weights.files import write_durably

FILE = "cards.json"


class CardRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One card. `since`: UTC epoch seconds. `why`: it has its use; for `nobody`, what is wrong with it."""

    card: int
    use: CardUse
    since: float
    why: str


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A move that was begun and has not ended. `begun_at`: UTC epoch seconds."""

    card: int
    to: CardUse
    why: str
    begun_at: float


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All cards. `moved_at`: UTC epoch seconds. `move_seconds`: how long the last move took. `next`: what was decided last, and why."""

    cards: tuple[CardRecord, ...]
    move: MoveRecord | None = None
    moved_at: float = 0.0
    move_seconds: float = 0.0
    next: str = ""

    def of(self, use: CardUse) -> list[int]:
        """The cards of one use, in order."""
        return sorted(item.card for item in self.cards if item.use == use)

    def with_card(self, card: int, use: CardUse, now: float, why: str) -> PoolRecord:
        """The same with another use of one card."""
        changed = CardRecord(card=card, use=use, since=now, why=why)
        return msgspec.structs.replace(self, cards=tuple(changed if item.card == card else item for item in self.cards))

    def ended(self, now: float, seconds: float) -> PoolRecord:
        """The same after its move, which took so long."""
        move = self.move
        if move is None:
            return self
        moved = self.with_card(move.card, move.to, now, move.why)
        return msgspec.structs.replace(moved, move=None, moved_at=now, move_seconds=seconds)


def started(held: PoolRecord | None, pool: Sequence[int], floor: int, now: float) -> PoolRecord:
    """What a start begins with: a move that was cut off is ended, the cards are those of the settings, users have at least their floor.

    Of a new pool users get half. A card that failed counts as the trainer's again: it was looked at before.
    """
    held = held or PoolRecord(cards=())
    held = held.ended(now, held.move_seconds)  # the move was cut off: nobody knows how long it takes
    known = {item.card: item for item in held.cards if item.use in {"users", "training"}}
    cards = {card: CardRecord(card=card, use="training", since=now, why="new in the pool") for card in pool}
    found = msgspec.structs.replace(held, cards=tuple(known.get(card, cards[card]) for card in pool))
    least = floor if known else max(floor, len(pool) // 2)
    for card in found.of("training")[: max(0, least - len(found.of("users")))]:
        found = found.with_card(card, "users", now, f"users keep at least {least} at a start")
    return found


def read_record(home: Path) -> PoolRecord | None:
    """None if there was no pool yet. Raises InvalidSettings: the file is damaged."""
    path = home / FILE
    try:
        return msgspec.json.decode(read_small(path), type=PoolRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        says = (
            f"{path} cannot be read: {error}; remove it while Millrace does not run here, and the cards are dealt anew"
        )
        raise InvalidSettings(says) from error


def write_record(home: Path, record: PoolRecord) -> None:
    """Durably. Raises Unavailable: the disk is full."""
    write_durably(home / FILE, [msgspec.json.format(msgspec.json.encode(record)), b"\n"])
