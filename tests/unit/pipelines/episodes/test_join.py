from __future__ import annotations

from pipelines.episodes.join import superseded
from tests.fakes import a_generation, a_signal


def test_of_two_things_one_person_said_the_later_counts_and_others_are_not_touched() -> None:
    about = a_generation()
    first, second = a_signal(about, value=True, at=1.0), a_signal(about, value=False, at=2.0)
    same = a_signal(about, value=False, at=3.0)
    comment = a_signal(about, "comment", "hm", at=4.0)
    assert superseded([same, comment, second, first]) == {first.id}


def test_everything_that_differs_from_the_last_word_lost() -> None:
    about = a_generation()
    said = [a_signal(about, value=value, at=at) for at, value in enumerate([True, True, False])]
    assert superseded(said) == {said[0].id, said[1].id}
    assert superseded([said[0], said[2]]) == {said[0].id}, "taking back what had lost anyway changes nothing"
