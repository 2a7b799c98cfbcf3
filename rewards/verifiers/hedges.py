"""Finds answers that hedge: a second answer after the first, or an answer that is withdrawn or denied.

Explanations may name other values: "42, because 50 - 8 = 42", "A, not B". A value right beside the answer, or after a word such as "or",
"maybe" or "alternatively", is another answer.
"""

from __future__ import annotations

import re

_JOINING = frozenset(
    "or and to too through thru also even either else vs versus nor but be is are it its as well aka plus minus give take no wait actually "  # noqa: SIM905 a list of words
    "in other words approx about around between xor o oder ou y und et e u of en answer the an so if then option choice letter text mathrm lor "
    "vee mid quad pm cup".split()
)
_DOUBT = re.compile(
    r"\b(?:alternatively|alternative|maybe|perhaps|possibl[ey]|possibility|potentially|might|may|could|another|either|otherwise|instead|unless|"
    r"else|xor|wait|if|versus|vs|on second thou?ght|my second|along with|together with|in addition|or\b(?:\W+\w+){0,3}\W*\Z)",
    re.IGNORECASE,
)
_EXPLAINING = frozenset(
    "not because since as for so from after with given times by per when where via using over than beats unlike whereas while excludes "  # noqa: SIM905 a list of words
    "leaves minus into plus is".split()
)
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_SENTENCE_END = re.compile(r"[.!?](?:[\s\"')*_\]}]|\Z)|\n")
_STATEMENT = re.compile(
    r"(?:[\s,&]|and\b|or\b|\b\w\b){0,40}?\s*\b(?:is|are|was|were|can|cannot|can't|do|does|don't|fails?|would|has|have)\b",
    re.IGNORECASE,
)
_CLAIM = re.compile(
    r"\W{0,4}(?:(?:is|are|would|could|might|may|can|will|seems?|looks?|be|just|equally|probably|also|too|as|well)\b\W{0,3}){0,5}"
    r"\b(?:(?:also|too|as well)(?=\W*(?:[.!?,;)\n]|\Z))|right|correct|possible|plausible|acceptable|fine|ok|okay|works?|fits?|valid|true)\b",
    re.IGNORECASE,
)
_TOPIC = re.compile(r"[ \t]+(?!is\b|are\b|or\b|and\b|also\b|too\b|may\b|might\b|could\b|would\b|if\b)[a-z]{2,}")
_WITHDRAWN = re.compile(
    r"[\s)\]}*_\"'$.,]{0,6}(?:\+(?![\d(])|\\pm|\u00b1|\bor (?:more|less|so|not|fewer|higher|lower|above|below|thereabouts|something|greater|smaller)\b"
    r"|\bat (?:most|least)\b|\band (?:up|above|below)\b|\bis (?:wrong|false|incorrect|not)\b|\b(?:if|unless)\b|\bgive or take\b|\bplus or minus\b"
    r"|\+\s?/\s?-|\bisn['\u2019]t\b)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|unlikely|hardly|anything but|other than|far from|neither|nor|except)|n['\u2019]t)"
    r"(?:[ \t]+(?:to|be|exactly|equal|necessarily|simply|just|really|option|choice))*[\s$(*_\"'\\]{1,8}(?:boxed\{)?\s*\Z",
    re.IGNORECASE,
)
_DISOWNED = re.compile(
    r"(?:\b(?:another|other|one|second|alternative)[ \t]+(?:possible[ \t]+)?\Z)|\b(?:false|untrue|wrong|incorrect|not true|not the case|unlikely|doubt\w*|deny|denies|n['\u2019]t think|not think|not sure|n['\u2019]t say|not say)"
    r"(?:[ \t]+(?:that|if|whether|to say))*[ \t,]+(?:that[ \t]+)?(?:the|my|your|a|its?)?[ \t]*(?:final|correct|right|true)?[ \t]*\Z",
    re.IGNORECASE,
)
_NEAR = 80


class TextAfterAnswer:
    """Reads the text after an answer, value by value."""

    def __init__(self) -> None:
        self._explains = False

    def is_another(self, gap: str, behind: str) -> bool:
        """Whether the next value is a second answer. `gap` is the text between it and the last value, `behind` the text after it."""
        if self._explains and _SENTENCE_END.search(gap) is None:
            # "because 50 - 8 leaves 42", "since B and C are wrong": the rest of the sentence is an explanation.
            return _CLAIM.match(behind) is not None
        found = _is_another(gap, behind)
        self._explains = not found
        return found


def _is_another(gap: str, behind: str) -> bool:
    words = [word.casefold() for word in _WORD.findall(gap)]
    if _DOUBT.search(gap[-_NEAR:]) and not {"because", "since", "not"} & set(words) and "words" not in words:
        return True
    unknown = [word for word in words if word not in _JOINING]
    ends = _SENTENCE_END.search(gap) is not None or ";" in gap
    if not unknown and words not in (["so"], ["as"]):
        return not (ends and (_TOPIC.match(behind) or (_STATEMENT.match(behind) and not _CLAIM.match(behind))))
    if len(unknown) == 1 and not ends and not {*words} & _EXPLAINING:
        return True
    return _CLAIM.match(behind) is not None


def is_withdrawn(text: str, end: int) -> bool:
    """Whether the text calls the value that ends at `end` a bound, a condition, an estimate, or wrong."""
    return _WITHDRAWN.match(text, end) is not None


def is_denied(text: str, start: int) -> bool:
    """Whether the text says that the value that begins at `start` is not the answer."""
    return _DENIED.search(text, max(0, start - _NEAR), start) is not None


def is_disowned(text: str, anchor: int) -> bool:
    """Whether the words at `anchor`, such as "answer is", name a wrong answer or one of someone else."""
    return _DISOWNED.search(text, max(0, anchor - _NEAR), anchor) is not None
