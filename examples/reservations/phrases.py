"""How guests put a party and a time into words, and how each wording is misread.

Every phrase has its meaning. A wording that is easy to misread also has the one misreading that the base policy was taught.
Pure data and pure functions, standard library only.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
FIRST_SEATING = 12 * 60
LAST_SEATING = 22 * 60 + 45
EVENING = 17 * 60
QUARTER_TO = 45

# How often each kind of wording is drawn.
PLAIN_PARTY_RATE = 0.5
CLOCK_RATE = 0.2
DIGITS_RATE = 0.4
BARE_HOUR_RATE = 0.7
LARGEST_PARTY_OF_US = 5


@dataclass(frozen=True)
class PartyPhrase:
    """Words for a number of guests. `misread` is None if the wording is plain."""

    text: str
    party: int
    misread: int | None = None


@dataclass(frozen=True)
class TimePhrase:
    """Words for a time of day. Times are `HH:MM`. `misread` is None if the wording is plain."""

    text: str
    time: str
    misread: str | None = None


def clock(minutes: int) -> str:
    """Render minutes since midnight as `HH:MM` on the 24-hour clock."""
    hours, rest = divmod(minutes % (24 * 60), 60)
    return f"{hours:02d}:{rest:02d}"


def party_phrase(rng: "Random") -> PartyPhrase:
    """Draw a party of 1 to 9 and one way of saying it. In half the draws the speaker is easy to miscount."""
    if rng.random() < PLAIN_PARTY_RATE:
        return _plain_party(rng)
    others = rng.randint(1, 6)
    word = NUMBER_WORDS[others]
    if others == 1:
        text = rng.choice(("me and a friend", "me and my sister", "myself plus one"))
    else:
        text = rng.choice(
            (f"me and {word} friends", f"me and {others} friends", f"myself plus {word}", f"me plus {word} colleagues"),
        )
    return PartyPhrase(text, others + 1, misread=others)


def _plain_party(rng: "Random") -> PartyPhrase:
    party = rng.randint(2, 9)
    word = NUMBER_WORDS[party]
    forms = [f"{party}", f"{party} people", f"{party} guests", word, f"{word} people", f"a party of {word}"]
    if party <= LARGEST_PARTY_OF_US:
        forms.append(f"the {word} of us")
    if word == "two":
        forms.append("a couple")
    return PartyPhrase(rng.choice(forms), party)


def time_phrase(rng: "Random") -> TimePhrase:
    """Draw a quarter hour between 12:00 and 22:45 and one way of saying it."""
    minutes = rng.randrange(FIRST_SEATING, LAST_SEATING + 1, 15)
    style = rng.random()
    if style < CLOCK_RATE:
        return TimePhrase(clock(minutes), clock(minutes))
    # Dropping the half of the day is the commonest slip: 7:30 pm becomes 07:30.
    morning = clock(minutes - 12 * 60)
    if style < CLOCK_RATE + DIGITS_RATE:
        return TimePhrase(_digits(minutes, rng), clock(minutes), misread=morning)
    misread = clock(minutes + 30) if minutes % 60 == QUARTER_TO else morning
    return TimePhrase(f"{_spoken(minutes)} {_part_of_day(minutes, rng)}", clock(minutes), misread=misread)


def _digits(minutes: int, rng: "Random") -> str:
    hours, rest = divmod(minutes, 60)
    hour = (hours - 1) % 12 + 1
    suffix = rng.choice((" pm", "pm", " PM"))
    if rest == 0 and rng.random() < BARE_HOUR_RATE:
        return f"{hour}{suffix}"
    return f"{hour}:{rest:02d}{suffix}"


def _spoken(minutes: int) -> str:
    hours, rest = divmod(minutes, 60)
    hour = NUMBER_WORDS[(hours - 1) % 12 + 1]
    following = NUMBER_WORDS[hours % 12 + 1]
    return {
        0: f"{hour} o'clock",
        15: f"quarter past {hour}",
        30: f"half past {hour}",
        QUARTER_TO: f"quarter to {following}",
    }[rest]


def _part_of_day(minutes: int, rng: "Random") -> str:
    if minutes < EVENING:
        return rng.choice(("in the afternoon", "this afternoon"))
    return rng.choice(("in the evening", "this evening", "tonight"))
