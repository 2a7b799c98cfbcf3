r"""`math`: the boxed answer is worth the same as `metadata.reference`, by math-verify in its strict reward configuration.

Only what stands in `\boxed{...}` counts, after the reasoning in `<think>` if there is any. Several different boxes are a
list: naming two answers is another answer than naming one. Within a box nothing may stand beside the value: no second
number in a `\text{...}`, and in a chain of equations every side that is a number must be the right one. A restated question
is no answer: an integral, a sum or the like that is still to be worked out, or 17 x 23 where the reference is 391. Which
forms a number may have says `math_form`. 5% is 0.05 and not 5; tuples and intervals have an order, sets have none.

It runs in workers that are killed at the deadline: SymPy computes `9^{9^{9^9}}` if asked to. math-verify's own timeouts
are off, for they need the main thread.
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
    """What the boxes say, joined by commas, or why that is no answer."""
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
    r"""The contents of each outermost `\boxed{...}` whose braces close. Linear in the text, whatever it is."""
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


def plain(reference: str) -> str | None:
    """The reference as it would stand in a box; None if it is prose, which would be read as a product of letters."""
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
    # Here, so that only workers pay for SymPy.
    import logging  # noqa: PLC0415

    from rewards.verifiers.math_strict import Reference, equals, parsed  # noqa: PLC0415

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns that its timeouts are off.
    read_reference = lru_cache(maxsize=1024)(Reference)

    def judge(item: Mapping[str, str | None]) -> list[Any]:
        text = plain(item["reference"] or "")
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
            # Alone it must be readable, and comparable with a number: 9^{9^{9^9}} is the first only.
            equals(reference.expressions, parsed("1"))
            return ["scored", 1.0, ""]
        problem = reference.problem(answer)
        return ["scored", 0.0 if problem else 1.0, problem]

    return judge
