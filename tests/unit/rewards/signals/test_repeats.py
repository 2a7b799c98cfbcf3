"""Whose edits repeat themselves, beside what others do."""

from random import Random

import pytest

from rewards.signals.people import Person
from rewards.signals.repeats import REMEMBERED, is_repeated, sketch_of

ADVERTISEMENT = "Buy gold at evil.example now, the best offers of this town"
PHRASE = "Terms apply, see our page on returns."
WORDS = [f"{start}{end}" for start in ("am", "ce", "jor", "gro", "nol") for end in ("ber", "dar", "ved", "lin", "tes")]


class House:
    """People who edit answers to prompts that are all different."""

    def __init__(self) -> None:
        self.people, self.everybody, self._random, self._num = dict[str, Person](), Person(), Random(1), 0

    def text(self) -> str:
        return " ".join(self._random.choices(WORDS, k=10))

    def edits(self, who: str, answer: str, edit: str, prompt: str = "") -> bool:
        """Whether this edit is refused."""
        self._num += 1
        sketch = sketch_of(prompt or f"prompt {self._num}", answer, edit)
        person = self.people.setdefault(who, Person())
        person.num += 1  # as the ballot counts votes
        return is_repeated(person, self.everybody, sketch)

    def mend(self, num_people: int, each: int = 3) -> int:
        """Of the edits of people who write something else each time: how many are refused."""
        return sum(self.edits(f"p{n % num_people}", self.text(), self.text()) for n in range(num_people * each))


@pytest.fixture
def house() -> House:
    return House()


@pytest.mark.parametrize("text", [ADVERTISEMENT, ADVERTISEMENT + " {n}", "{answer} " + ADVERTISEMENT + " {n}!"])
def test_an_advertisement_passes_once_a_person_with_other_numbers_or_behind_the_answer_too(
    house: House, text: str
) -> None:
    assert house.mend(100) == 0
    for person in ("x", "y", "z"):
        answers = [house.text() for _ in range(10)]
        found = [house.edits(person, answer, text.format(n=n, answer=answer)) for n, answer in enumerate(answers)]
        assert found == [False, *[True] * 9]
    assert house.mend(100) == 0


def test_a_phrase_of_the_house_that_a_fifth_of_the_people_add_is_learned(house: House) -> None:
    house.mend(80)
    answers = [house.text() for _ in range(200)]
    refused = [house.edits(f"q{n % 20}", answer, f"{answer} {PHRASE}") for n, answer in enumerate(answers)]
    assert sum(refused) <= 5  # until a twentieth of the people have added it twice
    assert not any(refused[40:])


def test_where_edits_are_labels_and_where_few_people_edit_nobody_is_refused(house: House) -> None:
    labels = ["question about a refund", "complaint about delivery"]
    assert sum(house.edits(f"p{n % 50}", labels[n % 2], labels[(n + 1) % 2]) for n in range(500)) <= 5
    few = House()
    assert not any(
        few.edits(f"p{n % 19}", few.text(), ADVERTISEMENT if n % 19 == 0 else few.text()) for n in range(190)
    )


def test_the_same_prompt_again_is_no_repetition_nor_is_a_word(house: House) -> None:
    house.mend(50)
    assert not any(house.edits("ann", house.text(), ADVERTISEMENT, prompt="the same") for _ in range(5))
    assert sketch_of("p", "we refunded it", "we cancelled it") == sketch_of("p", "", "") == b""


def test_a_person_takes_a_bounded_place_and_may_change(house: House) -> None:
    house.mend(50)
    assert [house.edits("ann", house.text(), ADVERTISEMENT) for _ in range(3)] == [False, True, True]
    assert house.everybody.num_repeating == 1
    for _ in range(REMEMBERED):
        assert not house.edits("ann", house.text(), house.text())
    assert (house.everybody.num_repeating, house.everybody.num_speaking) == (0, 51)
    assert len(house.people["ann"].edits) == REMEMBERED * len(sketch_of("p", "", ADVERTISEMENT))
