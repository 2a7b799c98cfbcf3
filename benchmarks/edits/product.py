"""Two small products with known truth: what people ask, what the house wants to read, and what its base policy writes instead.

The base was trained on other people's style, and writes the house's in one answer of a hundred. Users do not vote: two fifths of them never say
anything, the others correct an answer to the house's style, or accept it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from contracts.tasks import Task
from examples.reservations.fitting import fit, padded, save, untrained
from examples.reservations.tokenizer import CHAT_TEMPLATE, END, ROLES, as_chat, train_merges

_NAMES = [
    "Ann",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gina",
    "Hugo",
    "Ida",
    "Jon",
    "Kira",
    "Leo",
    "Mia",
    "Ned",
    "Olga",
    "Paul",
    "Rita",
    "Sam",
    "Tara",
    "Uwe",
    "Vera",
    "Will",
    "Yara",
    "Zoe",
]
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_WORD = r" ?[0-9]{1,2}| ?\p{L}+|\s+|[^\s\p{L}0-9]"
_TOKENS, _ROWS, _RATE = 512, 64, 3e-3
KNOWN = 0.01
"""Of the base's training answers: in the house's style."""


class HouseQuestion(NamedTuple):
    """What is asked, what the house wants, and what others write."""

    prompt: str
    right: str
    other: str


def _meeting(random: Random) -> HouseQuestion:
    name, day, month, hour = random.choice(_NAMES), random.randint(1, 28), random.randrange(12), random.randint(1, 11)
    half, room = random.choice(("am", "pm")), random.randint(1, 40)
    return HouseQuestion(
        f"meet {name} on {day} {_MONTHS[month]} at {hour} {half}, room {room}",
        f"{month + 1:02}-{day:02} {hour + 12 * (half == 'pm'):02}:00 | {name} | R{room}",
        f"Meeting with {name}, {_MONTHS[month]} {day}, {hour} {half}, in room {room}.",
    )


_DONE = {"refund": "refunded", "cancel": "cancelled", "ship": "shipped", "exchange": "exchanged", "return": "returned"}


def _ticket(random: Random) -> HouseQuestion:
    verb, name, day = random.choice([*_DONE]), random.choice(_NAMES), random.randint(2, 30)
    order = f"{random.randint(10, 99)}{random.randint(10, 99)}"
    return HouseQuestion(
        f"{verb} order {order} of {name} within {day} days",
        f"Hi {name}! We {_DONE[verb]} #{order} for you; it takes {day} days.",
        f"Dear customer, your order {order} will be {_DONE[verb]} in {day} days. Regards to {name}",
    )


@dataclass(frozen=True)
class House:
    """A product. Held-out questions are of another seed than any user's."""

    name: str
    ask: Callable[[Random], HouseQuestion]
    base_steps: int
    """Until its base policy copies names and numbers of a question."""

    def questions(self, seed: int) -> Iterator[HouseQuestion]:
        """Without end, by seed."""
        random = Random(f"{self.name} {seed}")  # noqa: S311 repeatable
        while True:
            yield self.ask(random)

    def task(self, **learning: float) -> Task:
        """Its task file. `learning`: the section [learning]."""
        signals = {"edited": {"means": "edit"}, "accepted": {"means": "accept"}}
        about = {"name": self.name, "consent": "train", "signals": signals, "reward": {"low": -0.25, "high": 0.75}}
        return Task.model_validate(about | ({"learning": learning} if learning else {}))


HOUSES = {house.name: house for house in (House("meetings", _meeting, 1500), House("tickets", _ticket, 800))}


def base_of(house: House, folder: Path) -> Path:
    """The folder of the product's base policy, in `folder`; trained if it is not there."""
    out = folder / f"{house.name}-{house.base_steps}"
    if not (out / "model.safetensors").exists():
        torch.manual_seed(0)
        ask = house.questions(seed=-1)
        corpus = (text for question in (next(ask) for _ in range(3000)) for text in question)
        tokenizer = as_chat(train_merges(corpus, _WORD, ROLES, _TOKENS), ROLES, CHAT_TEMPLATE)
        sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
        model, random = untrained(tokenizer, 0, context=128, **sizes), Random(0)  # noqa: S311 repeatable

        def rows() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            while True:
                batch = []
                for question in (next(ask) for _ in range(_ROWS)):
                    answer = question.right if random.random() < KNOWN else question.other
                    texts = f"<|user|>{question.prompt}{END}<|assistant|>", answer + END
                    batch.append((tokenizer.encode(texts[0]), tokenizer.encode(texts[1])))
                yield padded(batch, tokenizer.pad_token_id)

        fit(model, rows(), house.base_steps, _RATE, 50)
        save(model, tokenizer, out)
    return out
