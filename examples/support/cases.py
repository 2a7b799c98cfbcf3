"""The demo's customers: what each one writes, and what is true of the order. Pure, standard library only.

Streams are endless and deterministic. A case belongs to a split by a hash of its numbers, so the splits cannot overlap, whatever the seeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Literal

Split = Literal["train", "users", "sentinel", "held_out"]
Kind = Literal["refund", "broken", "where"]

KINDS: tuple[Kind, ...] = ("refund", "broken", "where")
ITEMS = ("lamp", "kettle", "chair", "radio", "clock", "teapot", "mirror", "basket")
PLACES = ("Bern", "Lyon", "Oslo", "Porto", "Turin", "Ghent", "Malmo", "Graz")
DAYS = (3, 9, 20, 40)
RETURNABLE = (14, 30)
STOCK = (0, 5)
WORDS: dict[Kind, tuple[str, ...]] = {
    "refund": (
        "I am customer {customer}. I want my money back for order {order}.",
        "Please refund order {order}, I do not like it. My customer number is {customer}.",
        "Customer {customer} here: can I return order {order}?",
    ),
    "broken": (
        "I am customer {customer}. Order {order} came broken.",
        "Order {order} does not work, I need a new one. My customer number is {customer}.",
        "Customer {customer} here: order {order} is in pieces.",
    ),
    "where": (
        "I am customer {customer}. Where is order {order}?",
        "Order {order} has not come yet. My customer number is {customer}.",
        "Customer {customer} here: when does order {order} come?",
    ),
}
NUM_BUCKETS = 8
_APART = 200
"""Cases after which a number may come again: until then the session that used it is over."""


@dataclass(frozen=True)
class SupportCase:
    """One customer with one order. `days`: since it came; `returnable`: for how many days it may be returned."""

    kind: Kind
    text: str
    customer: str
    order: str
    parcel: str
    item: str
    days: int
    returnable: int
    stock: int
    place: str

    @property
    def wants(self) -> Literal["", "refund", "replacement"]:
        """What must be done: nothing for a question, or for an order that came too long ago."""
        if self.kind == "broken":
            return "replacement" if self.stock else "refund"
        return "refund" if self.kind == "refund" and self.days <= self.returnable else ""

    @property
    def reply(self) -> str:
        """What must be said at the end."""
        if self.kind == "where":
            return on_its_way(self.place)
        return {"refund": REFUNDED, "replacement": REPLACED, "": TOO_LATE}[self.wants]


REFUNDED = "Your money is on its way back."
REPLACED = "A new one is on its way to you."
TOO_LATE = "It is too late for a refund."
SORRY = "Sorry, I cannot help you."
REPLIES = (REFUNDED, REPLACED, TOO_LATE, SORRY)


def on_its_way(place: str) -> str:
    """Tells where a parcel is."""
    return f"Your parcel is in {place}."


def cases(split: Split, seed: int) -> Iterator[SupportCase]:
    """Stream cases without end; equal arguments give equal streams. Numbers that were used lately are not used again."""
    pool = "bulk" if split in {"train", "users"} else split
    rng, recent = Random(f"{split}:{seed}"), deque[frozenset[str]](maxlen=_APART)
    while True:
        case = _draw(rng)
        used = frozenset((case.customer, case.order, case.parcel, case.item))
        if len(used) == 4 and _pool_of(case) == pool and not any(used & others for others in recent):  # noqa: PLR2004
            recent.append(used)
            yield case


def _pool_of(case: SupportCase) -> str:
    bucket = blake2b(f"{case.order} {case.customer}".encode(), digest_size=8).digest()[0] % NUM_BUCKETS
    return {0: "sentinel", 1: "held_out"}.get(bucket, "bulk")


def _draw(rng: Random) -> SupportCase:
    kind = rng.choice(KINDS)
    customer, order, parcel = (_number(rng) for _ in range(3))
    return SupportCase(
        kind=kind,
        text=rng.choice(WORDS[kind]).format(customer=customer, order=order),
        customer=customer,
        order=order,
        parcel=parcel,
        item=f"{rng.choice(ITEMS)}-{rng.randrange(10, 100)}",
        days=rng.choice(DAYS),
        returnable=rng.choice(RETURNABLE),
        stock=rng.choice(STOCK),
        place=rng.choice(PLACES),
    )


def _number(rng: Random) -> str:
    """Four digits, of which neither half begins with 0."""
    return f"{rng.randrange(10, 100)}{rng.randrange(10, 100)}"
