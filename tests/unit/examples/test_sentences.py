import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom
from typing import get_args

import pytest

from examples.demo.command import PRODUCT, write_sentinels
from examples.reservations.phrases import FIRST_SEATING, LAST_SEATING, clock
from examples.reservations.sentences import NAMES, TEMPLATES, Booking, Request, Split, confused, requests

NUM_REQUESTS = 600
TIMES = {clock(minutes) for minutes in range(FIRST_SEATING, LAST_SEATING + 1, 15)}


def take(split: Split, seed: int, count: int = NUM_REQUESTS) -> list[Request]:
    stream: Iterator[Request] = requests(split, seed)
    return list(islice(stream, count))


@pytest.mark.parametrize("split", get_args(Split))
def test_a_stream_is_a_function_of_split_and_seed(split: Split) -> None:
    assert take(split, 3) == take(split, 3)
    assert take(split, 3) != take(split, 4)


def test_equal_seeds_do_not_give_train_and_users_the_same_stream() -> None:
    assert take("train", 0) != take("users", 0)


@pytest.mark.slow
def test_sentinel_and_held_out_share_no_sentence_with_any_other_split() -> None:
    seed = SystemRandom().randrange(10**6)
    bulk, sentinel, held_out = (
        {request.sentence for split in splits for request in take(split, seed, 5000)}
        for splits in (("train", "users"), ("sentinel",), ("held_out",))
    )
    assert not sentinel & held_out, seed
    assert not (sentinel | held_out) & bulk, seed


@pytest.mark.parametrize("split", ["sentinel", "held_out"])
def test_judged_splits_repeat_no_sentence(split: Split) -> None:
    assert len({request.sentence for request in take(split, 0)}) == NUM_REQUESTS


def test_bookings_are_compact_json_with_sensible_values() -> None:
    for request in take("users", 0):
        booking = request.booking
        text = booking.json()
        assert list(json.loads(text)) == ["party", "time", "name"]
        assert Booking(**json.loads(text)) == booking
        assert " " not in text
        assert 1 <= booking.party <= 9
        assert booking.time in TIMES
        assert booking.name in NAMES
        assert booking.name in request.sentence


def test_the_answer_is_exactly_the_published_shape() -> None:
    assert Booking(4, "19:30", "Lee").json() == '{"party":4,"time":"19:30","name":"Lee"}'


def test_a_confusion_is_a_different_booking_of_the_same_shape() -> None:
    rng = Random(0)
    for request in take("train", 0):
        confusion = confused(request, rng)
        assert confusion in request.confusions
        assert confusion != request.booking
        assert confusion.name == request.booking.name
        assert 1 <= confusion.party <= 10
        hours, minutes = map(int, confusion.time.split(":"))
        assert len(confusion.time) == 5
        assert 0 <= hours < 24
        assert minutes in {0, 15, 30, 45}


def test_every_kind_of_confusion_occurs() -> None:
    party = morning = quarter = 0
    for request in take("train", 0):
        for confusion in request.confusions:
            party += confusion.party != request.booking.party
            morning += int(confusion.time[:2]) == int(request.booking.time[:2]) - 12
            quarter += "quarter to" in request.sentence and confusion.time.endswith(":15")
    assert min(party, morning, quarter) > NUM_REQUESTS // 50


def test_sentences_vary() -> None:
    drawn = take("users", 0, 3000)
    assert len({request.sentence for request in drawn}) > 2900
    assert len({request.booking.name for request in drawn}) == len(NAMES)
    assert {request.booking.time for request in drawn} == TIMES
    assert len(TEMPLATES) >= 15


def test_a_user_simulator_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, examples.reservations.sentences; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - a fixed command


def test_the_sentinels_that_containers_get_are_the_demos(tmp_path: Path) -> None:
    assert write_sentinels(tmp_path / "made").read_text() == (PRODUCT / "sentinels.jsonl").read_text()
