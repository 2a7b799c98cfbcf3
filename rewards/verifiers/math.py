r"""`math`: the boxed answer has the same value as `metadata.reference`, by math-verify in its strict reward configuration.

Only the text in `\boxed{...}` counts, after the reasoning in `<think>` if there is any. Several different boxes are a
list, so two answers differ from one answer. A box holds the value alone: a second number in a `\text{...}` is wrong, and
in a chain of equations each side that is a number must have the right value. A restated question is not an answer, for
example an unevaluated integral or sum, or 17 x 23 where the reference is 391. `math_form` defines the accepted forms of a
number. 5% is 0.05 and not 5. Tuples and intervals are ordered, sets are not.

It runs in workers that are killed at the deadline, because SymPy would try to compute `9^{9^{9^9}}`. math-verify's own
timeouts are off, because they need the main thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from contracts.errors import InvalidTask
from rewards.killable import Setup, pool_for
from rewards.verifiers.check import BatchVerifier, Check, Context, wrong
from rewards.verifiers.referee import refereed
from rewards.verifiers.texts import without_reasoning

VERSION = 2

_MEMORY_BYTES = 2 << 30
_MAX_ANSWER = 2000
_MAX_DEPTH = 20
_BRACES = re.compile(r"\\boxed\{|\\[{}\\]|[{}]")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "min", "max", "and"})
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_NO_PROSE = re.compile(rf"{_TEXT.pattern}|\\(?:begin|end)\s*\{{\w+\*?\}}|\\operatorname\*?\s*\{{\w+\}}")
_DOLLARS = re.compile(r"\A(?:\$\$?(.+?)\$\$?|\\\((.+)\\\)|\\\[(.+)\\\])\Z", re.DOTALL)


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    if config:
        raise InvalidTask(f"it takes no config, not {sorted(config)}; remove it", param=min(config))
    pool = pool_for(Setup("rewards.verifiers.math:worker", memory_bytes=_MEMORY_BYTES))
    return refereed(pool, context.deadline_seconds, answer_in)


def answer_in(text: str) -> str | Check:
    """The content of the boxes, joined by commas, or a check that says why there is no answer."""
    spoken = without_reasoning(text)
    boxes = [] if spoken is None else boxed(spoken.rpartition("</think>")[2])
    if not boxes:
        return wrong("<think> is never closed" if spoken is None else "no \\boxed{} answer")
    answer = ", ".join(dict.fromkeys(box.strip() for box in boxes))
    if len(answer) > _MAX_ANSWER:
        return wrong(f"the boxed answer is longer than {_MAX_ANSWER} characters")
    if _depth(answer) > _MAX_DEPTH:
        return wrong(f"the boxed answer is nested deeper than {_MAX_DEPTH}")
    if "\\boxed" in answer:
        return wrong("a box in a box")
    for said in _TEXT.finditer(answer):
        if said.group(0) != answer and re.search(r"\d", said.group(1)):
            return wrong("a number in the text beside the answer")
    return answer


def boxed(text: str) -> list[str]:
    r"""The contents of each outermost `\boxed{...}` whose braces close. The time is linear in any text."""
    found: list[tuple[int, int]] = []
    open_boxes: list[int | None] = []
    for token in _BRACES.finditer(text):
        if token.group() in {"{", "\\boxed{"}:
            open_boxes.append(token.end() if len(token.group()) > 1 else None)
        elif token.group() == "}" and open_boxes and (start := open_boxes.pop()) is not None:
            while found and found[-1][0] > start:
                found.pop()
            found.append((start, token.start()))
    return [text[start:end] for start, end in found]


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


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, str | None]], list[Any]]:
    """In the worker process: see `referee`."""
    del config
    # Imported here, so that only workers load SymPy.
    import logging  # noqa: PLC0415

    from rewards.verifiers.math_strict import Reference, equals, parsed  # noqa: PLC0415

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns that its timeouts are off.
    read_reference = lru_cache(maxsize=1024)(Reference)

    def judge(item: Mapping[str, str | None]) -> list[Any]:
        text = box_content(item["reference"] or "")
        if text is None:
            return [
                "bad_reference",
                None,
                "metadata.reference is prose or empty; give the value alone, as in \\frac{1}{2}",
            ]
        reference = read_reference(text)
        if not reference.expressions:
            return ["bad_reference", None, "metadata.reference is not mathematics that can be parsed"]
        if (answer := item["answer"]) is None:
            # The reference alone: it must parse, and comparing it must end. 9^{9^{9^9}} parses only.
            equals(reference.expressions, parsed("1"))
            return ["scored", 1.0, ""]
        problem = reference.problem(answer)
        return ["scored", 0.0 if problem else 1.0, problem]

    return judge
