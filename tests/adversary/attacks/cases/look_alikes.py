"""Texts that look like what was asked for, or hide what was forbidden, in letters, marks and commas that are others."""

from __future__ import annotations

from typing import Any

CASES: tuple[tuple[str, dict[str, Any], str], ...] = (
    # Asked for and only drawn: it does not pass.
    ("include_keywords", {"value": ["secret"]}, "a s\u0435cr\u0435t thing"),
    ("include_keywords", {"value": ["secret"]}, "a s\u0336e\u0336c\u0336r\u0336e\u0336t\u0336 thing"),
    ("keyword_frequency", {"word": "sky", "at_least": 2}, "sky and \u0455ky"),
    ("letter_frequency", {"letter": "o", "at_least": 3}, "\u043e\u043eo zzz"),
    ("starts_with", {"value": "Dear"}, "D\u0435ar all"),
    ("ends_with", {"value": "Bye."}, "Well. B\u0443e."),
    ("min_words", {"value": 4}, "one\u200btwo\u2060three\u200dfour five"),
    ("min_words", {"value": 3}, "one \u3164\u3164 \u3164 \u115f two"),
    ("min_characters", {"value": 10}, "ab" + "\u200b" * 40),
    ("unique_lines", {}, "Buy now\nB\u0443 now\nBuy n\u043ew"),
    ("unique_lines", {}, "Buy now\nBuy\u200b now"),
    ("two_responses", {}, "the same\n******\nthe s\u0430me"),
    ("repeat_prompt", {}, "Why is the sky blu\u0435? Because."),
    ("postscript", {}, "Text.\n\n\u0420.S. and this"),
    ("title_words", {"value": 1}, "none here but \u200b\u200b"),
    # Forbidden and only drawn: it does not hide.
    ("exclude_keywords", {"value": ["secret"]}, "a s\u0435cr\u0435t thing"),
    ("exclude_keywords", {"value": ["cop"]}, "he is a \u0441\u043e\u0440 now"),
    ("exclude_keywords", {"value": ["secret"]}, "a s\u0336e\u0336c\u0336r\u0336e\u0336t\u0336 thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a se\u200dc\u2060r\ufe0fet thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a \U0001d42c\U0001d41e\U0001d41c\U0001d42b\U0001d41e\U0001d42d thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a \u24e2\u24d4\u24d2\u24e1\u24d4\u24e3 thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a \ua731\u1d07\u1d04\u0280\u1d07\u1d1b thing"),
    ("exclude_keywords", {"value": ["office"]}, "the o\ufb03ce"),
    ("keyword_frequency", {"word": "sky", "at_most": 1}, "sky and \u0455ky"),
    ("letter_frequency", {"letter": "e", "at_most": 1}, "th\u0435 th\u0435 th\u0435"),
    ("letter_frequency", {"letter": "e", "at_most": 1}, "\uff45\uff45\uff45 and"),
    ("all_lowercase", {}, "small \U0001f170\U0001f171 letters"),
    ("all_lowercase", {}, "small \u24b6\u24b7 letters"),
    ("all_lowercase", {}, "small \u029c\u1d07\u029f\u029f\u1d0f letters"),
    ("capital_words", {"at_most": 0}, "the \U0001d40d\U0001d400\U0001d412\U0001d400"),
    *(
        ("no_commas", {}, f"one{comma} two")
        for comma in ",\uff0c\u3001\uff64\u060c\u066b\u066c\u201a\u2e41\u2e32\u1802\u055d\ufe50\ufe10\ua4f9\u0326"
    ),
    ("exclude_keywords", {"value": ["x"]}, "\u200b\u2060\ufeff"),
)
"""A check of `instruction`, its parameters, and a text that must fail it."""
