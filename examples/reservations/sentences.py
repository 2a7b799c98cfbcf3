"""The demo's guests: sentences that ask for a table, the booking each one means, and how it is misread.

Streams are endless, deterministic and torch-free. A sentence belongs to a split by a stable hash of its text, so the
splits cannot overlap, whatever the seeds.
"""

import json
from dataclasses import dataclass, replace
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Literal

from examples.reservations.phrases import PartyPhrase, TimePhrase, party_phrase, time_phrase

if TYPE_CHECKING:
    from collections.abc import Iterator

Split = Literal["train", "users", "sentinel", "held_out"]

NAMES = (
    "Adams", "Baker", "Bell", "Brown", "Chen", "Clark", "Cohen", "Cruz", "Diaz", "Evans", "Fox", "Garcia", "Gray",
    "Green", "Hall", "Hill", "Ito", "Jones", "Kaur", "Khan", "Kim", "King", "Lee", "Lopez", "Moore", "Nguyen",
    "Novak", "Okafor", "Park", "Patel", "Reed", "Rossi", "Sato", "Scott", "Shah", "Silva", "Singh", "Smith", "Ward",
    "Wood",
)  # fmt: skip

TEMPLATES = (
    "Book a table for {party} at {time}, name {name}.",
    "Could you book a table for {party} at {time} under {name}?",
    "A table for {party} at {time} please, it's {name}.",
    "Table at {time} for {party}, under the name {name}.",
    "This is {name}, I need a table for {party} at {time}.",
    "Hi, {name} here. Do you have room for {party} at {time}?",
    "Please reserve for {party} at {time}. The name is {name}.",
    "I would like to reserve a table at {time} for {party}, {name}.",
    "Dinner for {party} at {time}, name of {name}, please.",
    "Reservation for {party} under {name} at {time}.",
    "My name is {name}. Can we come at {time}? It's for {party}.",
    "{name}, table for {party}, {time}.",
    "Can I get a table at {time}? It's for {party}, under {name}.",
    "Put {name} down for a table at {time}, for {party}.",
    "Hello, we want to eat at {time}, table for {party}, name {name}.",
    "Is there space for {party} at {time}? The name is {name}.",
    "Save a table for {party}. We arrive at {time}. Thanks, {name}",
    "Hello, {name} speaking, a booking at {time} for {party}, please.",
)

NUM_BUCKETS = 8
PLAIN_CONFUSION_RATE = 0.2
CONFUSION_RATE = 0.58


@dataclass(frozen=True)
class Booking:
    """The meaning of a request: number of guests, time as `HH:MM`, and name."""

    party: int
    time: str
    name: str

    def json(self) -> str:
        """Render the exact answer the product expects: fixed key order, no spaces."""
        fields = {"party": self.party, "time": self.time, "name": self.name}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True)
class Request:
    """One sentence from a guest, the booking it means, and the bookings it is misread as (never empty)."""

    sentence: str
    booking: Booking
    confusions: tuple[Booking, ...]
    confusion_rate: float


def requests(split: Split, seed: int) -> "Iterator[Request]":
    """Stream requests without end; equal arguments give equal streams.

    `train` and `users` draw from the same bulk of sentences. `sentinel` and `held_out` share no sentence with any other
    split and never repeat one within a stream.
    """
    pool = "bulk" if split in {"train", "users"} else split
    rng = Random(f"{split}:{seed}")
    seen: set[str] = set()
    while True:
        request = _draw(rng)
        if _pool_of(request.sentence) != pool or request.sentence in seen:
            continue
        if pool != "bulk":
            seen.add(request.sentence)
        yield request


def confused(request: Request, rng: Random) -> Booking:
    """One of the systematic misreadings of a request. It never equals the right booking."""
    return rng.choice(request.confusions)


def _pool_of(sentence: str) -> str:
    bucket = blake2b(sentence.encode(), digest_size=8).digest()[0] % NUM_BUCKETS
    return {0: "sentinel", 1: "held_out"}.get(bucket, "bulk")


def _draw(rng: Random) -> Request:
    template, name = rng.choice(TEMPLATES), rng.choice(NAMES)
    party, time = party_phrase(rng), time_phrase(rng)
    booking = Booking(party.party, time.time, name)
    misreadings = _misreadings(booking, party, time)
    # A plain wording is sometimes miscounted too, as if the speaker were one more guest.
    return Request(
        sentence=template.format(party=party.text, time=time.text, name=name),
        booking=booking,
        confusions=misreadings or (replace(booking, party=booking.party + 1),),
        confusion_rate=CONFUSION_RATE if misreadings else PLAIN_CONFUSION_RATE,
    )


def _misreadings(booking: Booking, party: PartyPhrase, time: TimePhrase) -> tuple[Booking, ...]:
    found: list[Booking] = []
    if party.misread is not None:
        found.append(replace(booking, party=party.misread))
    if time.misread is not None:
        found.append(replace(booking, time=time.misread))
    return tuple(found)
