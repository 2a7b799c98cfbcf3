r"""`math`: the boxed answer has the same value as `metadata.reference`. math-verify parses both sides; here they are compared.

Several different boxes are a list, so two answers differ from one answer; behind a written correction only later boxes count. A box holds
the value alone, and no restated question (docs/rewards.md): `maths.form` defines the accepted forms of a number, `maths.text` the
spellings that are read, `maths.number` and `maths.equal` what is equal. What is neither proven equal nor different is `unverifiable`.

It runs in workers that are killed at the deadline, because SymPy would try to compute `9^{9^{9^9}}`. math-verify's own timeouts are off,
because they need the main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from contracts.answers.reasoning import without_reasoning
from contracts.errors import InvalidTask
from rewards.killable import Setup, pool_for
from rewards.verifiers.check import UNVERIFIABLE, Answer, BatchVerifier, Check, Context, wrong
from rewards.verifiers.referee import refereed

VERSION = 5

_SETUP = Setup("rewards.verifiers.math:worker", memory_bytes=2 << 30)
_MAX_ANSWER = 2000
_MAX_DEPTH = 20
_BRACES = re.compile(r"\\boxed\{|\\[{}\\]|[{}]")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "min", "max", "and"})
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_NO_PROSE = re.compile(rf"{_TEXT.pattern}|\\(?:begin|end)\s*\{{\w+\*?\}}|\\operatorname\*?\s*\{{\w+\}}")
_CLOSING = re.compile(r"(?<=[^\\\s.,;])\s*[.,;]\Z")
_MAX_BOXES = 16
_CORRECTION = re.compile(
    r"\b(?:no\s*[,:.;!\u2014\u2013-]|wait\b|correction\b|corrected\b|actually\b|my mistake\b|i made (?:a|an) (?:mistake|error)\b|scratch that\b"
    r"|on second thought\b|let me (?:correct|redo|fix)\b)",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"\b(?:or|and|also|either|maybe|perhaps|possibly|might|may|could|alternatively|alternative|another|both|else|unless|if)\b|\n\s*\n\s*\n",
    re.IGNORECASE,
)
_DOLLARS = re.compile(r"\A(?:\$\$?(.+?)\$\$?|\\\((.+)\\\)|\\\[(.+)\\\])\Z", re.DOTALL)


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    if config:
        raise InvalidTask(f"it takes no config, not {sorted(config)}; remove it", param=min(config))
    return refereed(pool_for(_SETUP), context.deadline_seconds, answer_in)


def answer_in(text: str) -> str | Check:
    """The content of the boxes, joined by commas, or a check that says why there is no answer."""
    spoken = without_reasoning(text)
    if spoken is None:
        return wrong("<think> is never closed")
    text = spoken.rpartition("</think>")[2]
    places, is_cut_off = _places(text)
    if is_cut_off or not places:
        return wrong("the last \\boxed{ never ends" if is_cut_off else "no \\boxed{} answer")
    if len(places) > _MAX_BOXES:
        return wrong(f"more than {_MAX_BOXES} boxes")
    answer = ", ".join(
        dict.fromkeys(_CLOSING.sub("", text[start:end].strip()) for start, end in _standing(text, places))
    )
    problem = _unfit(answer)
    return wrong(problem) if problem else answer


def _unfit(answer: str) -> str:
    if len(answer) > _MAX_ANSWER:
        return f"the boxed answer is longer than {_MAX_ANSWER} characters"
    if _depth(answer) > _MAX_DEPTH:
        return f"the boxed answer is nested deeper than {_MAX_DEPTH}"
    if "\\boxed" in answer:
        return "a box in a box"
    for said in _TEXT.finditer(answer):
        if said.group(0) != answer and re.search(r"\d", said.group(1)):
            return "a number in the text beside the answer"
    return ""


def boxed(text: str) -> list[str]:
    r"""The contents of each outermost `\boxed{...}` whose braces close."""
    return [text[start:end] for start, end in _places(text)[0]]


def _places(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Start and end of each outermost box that closes, and whether one that does not begins behind them. Linear in any text."""
    found: list[tuple[int, int]] = []
    open_boxes: list[int | None] = []
    for token in _BRACES.finditer(text):
        if token.group() in {"{", "\\boxed{"}:
            open_boxes.append(token.end() if len(token.group()) > 1 else None)
        elif token.group() == "}" and open_boxes and (start := open_boxes.pop()) is not None:
            while found and found[-1][0] > start:
                found.pop()
            found.append((start, token.start()))
    last = max((start for start in open_boxes if start is not None), default=-1)
    return found, bool(found) and last > found[-1][1]


def _standing(text: str, places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The boxes behind the last written correction: "no: ", "wait", "correction". Boxes that are joined all stand."""
    for place in range(len(places) - 1, 0, -1):
        gap = text[places[place - 1][1] : places[place][0]]
        if _CORRECTION.search(gap) and not _JOINED.search(gap):
            return places[place:]
    return places


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def box_content(reference: str) -> str | None:
    """The reference in the form of a box's content. None if it is prose, because SymPy would read that as a product of letters."""
    if boxes := boxed(reference):
        return ", ".join(boxes)
    text = reference.strip()
    if match := _DOLLARS.match(text):
        text = next(group for group in match.groups() if group)
    words = [word for word in _PROSE.findall(_NO_PROSE.sub(" ", text)) if word not in _FUNCTIONS]
    return text if text and len(words) <= 1 else None


def explain(answer: Answer, config: Mapping[str, Any]) -> dict[str, str]:
    """What is read on each side: `answer` and `reference`, as SymPy's text or why nothing is read. Waits for a worker."""
    build(config)
    said, right = answer_in(answer.text), answer.reference
    pool = pool_for(_SETUP)
    sides = {"reference": right or "", "answer": "" if isinstance(said, Check) else said}
    outcome = pool.run_all([{"reads": sides}], Context().deadline_seconds)[0]
    found = dict(outcome.value) if outcome.how == "answered" else dict.fromkeys(sides, outcome.reason)
    if isinstance(said, Check):
        found["answer"] = said.reason
    return found


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """In the worker process: see `referee`."""
    del config
    # Imported here, so that only workers load SymPy.
    import logging  # noqa: PLC0415

    from rewards.verifiers.maths.exact import TooBig  # noqa: PLC0415
    from rewards.verifiers.maths.strict import Reference, Unverifiable, reading  # noqa: PLC0415

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns that its timeouts are off.
    read_reference = lru_cache(maxsize=1024)(Reference)

    def judge(item: Mapping[str, Any]) -> Any:
        if sides := item.get("reads"):
            return {
                side: reading(box_content(text) or text if side == "reference" else text)
                for side, text in sides.items()
            }
        text = box_content(item["reference"] or "")
        if text is None:
            return _unusable("is prose or empty; give the value alone, as in \\frac{1}{2}")
        try:
            reference = read_reference(text)
        except TooBig:
            return _unusable("is too large to be compared")
        if not reference.can_be_compared:
            return _unusable("is not mathematics that can be parsed")
        try:
            # The reference alone must be parsed, and comparing it must end.
            problem = reference.problem("1" if item["answer"] is None else item["answer"])
        except Unverifiable:
            return ["broken", None, f"{UNVERIFIABLE}: neither equal to the reference nor proven to differ from it"]
        return ["scored", 0.0 if problem and item["answer"] is not None else 1.0, problem]

    return judge


def _unusable(why: str) -> list[Any]:
    return ["bad_reference", None, f"metadata.reference {why}"]
