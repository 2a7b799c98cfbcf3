"""Normalises a text for all checks, so that look-alike letters and invisible characters cannot hide a word, a comma or a call.

`plain` drops invisible characters and replaces styled forms (full-width, bold, circled) by their letters. `as_displayed` is the text as a
reader sees it: a letter of another script becomes the ASCII letter that it looks like (Unicode's confusables, UTS 39), in words that mix it
with Latin letters, and in words of look-alikes alone if the text is mostly Latin. Required parts must be in `plain`. Forbidden parts may be
in neither.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache, partial

_LOOK_LIKE = (
    "a:\u0430\u03b1\u0251\u1d00 b:\u0184\u13cf\u0299\u044c c:\u0441\u03f2\u1d04\u2ca5\u0188 "
    "d:\u0501\u13e7\u1d05 e:\u0435\u04bd\u1d07\u0454\u03b5 f:\ua730\u0584 g:\u0261\u0581\u0262 "
    "h:\u04bb\u0570\u13c2\u029c i:\u0456\u03b9\u0131\u0269\u026a\u04cf j:\u0458\u03f3\u0575\u1d0a "
    "k:\u043a\u03ba\u1d0b l:\u029f\u01c0 m:\u043c\u1d0d n:\u0578\u057c\u0274\u03b7 "
    "o:\u043e\u03bf\u0585\u1d0f\u2c9f\u03c3 p:\u0440\u03c1\u1d18\u2ca3 q:\u051b\u0566\u0563 "
    "r:\u0433\u1d26\u0280\u2c85 s:\u0455\u01bd\ua731 t:\u0442\u03c4\u1d1b u:\u03c5\u057d\u1d1c\u028b "
    "v:\u0475\u03bd\u1d20 w:\u051d\u0461\u1d21\u0561 x:\u0445\u03c7\u2cad y:\u0443\u03b3\u04af\u028f "
    "z:\u1d22 A:\u0410\u0391\u13aa B:\u0412\u0392\u13f4 C:\u0421\u03f9\u13df\u2ca4 D:\u13a0 "
    "E:\u0415\u0395\u13ac F:\u03dc G:\u050c\u13c0 H:\u041d\u0397\u13bb I:\u0406\u0399\u04c0 "
    "J:\u0408\u037f\u13ab K:\u041a\u039a\u13e6 L:\u13de M:\u041c\u039c\u13b7 N:\u039d "
    "O:\u041e\u039f\u0555 P:\u0420\u03a1\u13e2 Q:\u051a R:\u13a1 S:\u0405\u13da\u054f "
    "T:\u0422\u03a4\u13a2 U:\u054d V:\u0474\u13d9 W:\u051c\u13b3 X:\u0425\u03a7 Y:\u0423\u03a5\u04ae "
    "Z:\u0396\u13c3"
)
"""Each letter, and what looks like it."""
_TWINS = {twin: pair[0] for pair in _LOOK_LIKE.split() for twin in pair[2:]}
_BADGES = {chr(first + place): chr(65 + place) for first in (0x1F150, 0x1F170) for place in range(26)}
"""White letters on black, which Unicode does not call letters."""
COMMAS = frozenset(
    ",\uff0c\u3001\uff64\u060c\u066b\u066c\u201a\u2e32\u2e34\u2e41\u2e4c\u2e49\ua4f9\u1802\u1808\u055d\u07f8\u1363\ufe10\ufe11\ufe50\ufe51"
    "\u02cc\u0326\ua6f5\u2e4e\U000102f7"
)
"""Characters that look like a comma."""
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800\u180e") | {
    chr(code) for code in range(0xFE00, 0xFE10)
}
_WORD = re.compile(r"(?:[^\W\d_][\u0300-\u036f\u0489\u20d0-\u20f0\ufe00-\ufe0f]*)+")
_OTHER = re.compile(r"[^\x00-\x7f]")
_SUSPECT = re.compile(rf"[{''.join(_TWINS)}\u0300-\u036f\u0489\u20d0-\u20f0]")
_MARKS = re.compile(r"(?<=[A-Za-z])[\u0300-\u036f\u0489\u20d0-\u20f0\ufe00-\ufe0f]+")


@lru_cache(maxsize=32)
def plain(text: str) -> str:
    """The text with styled letters replaced and without invisible characters. Letters of all scripts stay."""
    if text.isascii():
        return text
    folded = _OTHER.sub(lambda match: _folded(match.group()), unicodedata.normalize("NFC", text))
    return unicodedata.normalize("NFC", folded)


@lru_cache(maxsize=32)
def as_displayed(text: str) -> str:
    """The text as a reader sees it."""
    text = plain(text)
    if _SUSPECT.search(text) is None:
        return text
    words = _WORD.findall(text)
    num_latin = sum(any(letter.isascii() for letter in word) for word in words)
    num_foreign = sum(not any(letter.isascii() for letter in word) and not _has_twins_alone(word) for word in words)
    return _MARKS.sub("", _WORD.sub(partial(_as_it_looks, is_foreign=num_foreign > num_latin), text))


def readings(text: str) -> tuple[str, ...]:
    """The different readings of a text; only one if it has no look-alikes."""
    return tuple(dict.fromkeys((plain(text), as_displayed(text))))


def num_capitals(text: str) -> int:
    """The number of capital letters, styled ones included."""
    return sum(letter.isupper() or letter.istitle() for letter in plain(text))


def num_small_capitals(text: str) -> int:
    """The number of letters that Unicode calls small capitals: they count as lower case but look like capitals."""
    return sum("SMALL CAPITAL" in unicodedata.name(letter, "") for letter in text if not letter.isascii())


def _folded(letter: str) -> str:
    category = unicodedata.category(letter)
    if letter in _INVISIBLE or category in {"Cf", "Co", "Cs", "Cn"}:
        return ""
    if letter in _BADGES:
        return _BADGES[letter]
    if category == "Zs":
        return " "
    folded = unicodedata.normalize("NFKC", letter)
    # A footnote's number and a trade mark are not part of a word; a ligature is.
    is_part = category[0] == "L" or (len(folded) == 1 and category != "No")
    return folded if is_part else letter


def _as_it_looks(match: re.Match[str], *, is_foreign: bool) -> str:
    word = match.group()
    is_mixed = any(letter.isascii() for letter in word)
    if is_mixed or (not is_foreign and _has_twins_alone(word)):
        return "".join(_TWINS.get(letter, letter) for letter in word)
    return word


def _has_twins_alone(word: str) -> bool:
    return all(letter in _TWINS for letter in word if letter.isalpha())
