"""Whose remarks count: no person says more than a share of all, and nobody is believed against everybody else. Pure.

    outvoted        three or more people edited answers to one prompt. If half of them wrote the same text, other texts go; else a text goes that
                    is far less like the others' than they are like each other.
    unlike_others   a person whose edits usually move answers much further than other people's do, or are outvoted every second time: all go.
    person_share    what a person said beyond a hundredth of all, or three times what people usually say.

A wrong edit that changes little, of a prompt that nobody else edited, passes: there it is one voice of many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from commands.learn.selection import Remark
from rewards.signals.mapping import kept_share

LEAST_VOTERS = 3
LEAST_PEOPLE = 10
"""Of fewer people nobody can say what is usual."""
LARGEST_SHARE = 0.01
USUAL_TIMES = 3
FURTHER = 0.3
"""How much further an edit is from the others than usual, as a share of the text."""
_DEVIATIONS = 5.0
_MOST_COMPARED = 20
"""Edits of one prompt that are compared with each other."""


def distrusted(remarks: Sequence[Remark]) -> dict[int, str]:
    """Place of each remark that does not count, and why."""
    edits = [place for place, remark in enumerate(remarks) if remark.kind == "edit"]
    found = dict.fromkeys(_outvoted(remarks, edits), "outvoted")
    strange = _strangers(remarks, edits, found)
    found |= {place: "unlike_others" for place in edits if remarks[place].person in strange}
    return found | dict.fromkeys(_too_many(remarks, found), "person_share")


def _outvoted(remarks: Sequence[Remark], edits: Sequence[int]) -> list[int]:
    by_prompt = defaultdict[bytes, list[int]](list)
    for place in edits:
        by_prompt[remarks[place].prompt].append(place)
    found = list[int]()
    for places in by_prompt.values():
        newest = {
            remarks[place].person: place for place in places
        }  # one voice for each person, and one for all without a name
        if len(newest) < LEAST_VOTERS:
            continue
        voices = [*newest.values()][-_MOST_COMPARED:]
        text, num = Counter(remarks[place].chosen.strip() for place in voices).most_common(1)[0]
        if num > 1 and num * 2 >= len(voices):
            found += [place for place in places if remarks[place].chosen.strip() != text]
            continue
        near = {
            place: median(
                kept_share(remarks[other].chosen, remarks[place].chosen) for other in voices if other != place
            )
            for place in voices
        }
        usual = median(near.values())
        out = {remarks[place].person for place, share in near.items() if share < usual - FURTHER}
        found += [place for place in places if remarks[place].person in out]
    return found


def _strangers(remarks: Sequence[Remark], edits: Sequence[int], outvoted: dict[int, str]) -> set[str]:
    moved, lost = defaultdict[str, list[float]](list), Counter[str]()
    for place in edits:
        remark = remarks[place]
        if remark.person:
            moved[remark.person].append(1.0 - kept_share(remark.rejected or "", remark.chosen))
            lost[remark.person] += place in outvoted
    found = {person for person, num in lost.items() if num * 2 >= len(moved[person])}
    if len(moved) >= LEAST_PEOPLE:
        each = {person: median(shares) for person, shares in moved.items()}
        usual = median(each.values())
        spread = median(abs(share - usual) for share in each.values())
        found |= {person for person, share in each.items() if share > usual + max(FURTHER, _DEVIATIONS * spread)}
    return found


def _too_many(remarks: Sequence[Remark], gone: dict[int, str]) -> list[int]:
    said = defaultdict[str, list[int]](list)
    for place, remark in enumerate(remarks):
        if remark.person and place not in gone:
            said[remark.person].append(place)
    if not said:
        return []
    num = sum(map(len, said.values()))
    most = max(1, int(LARGEST_SHARE * num), USUAL_TIMES * int(median(map(len, said.values()))))
    return [place for places in said.values() for place in places[:-most]]
