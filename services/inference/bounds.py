"""The bounds of numbers, labels, biases and stop strings: the same for chats and for prompts. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from contracts.errors import InvalidRequest, Unsupported, field_error
from contracts.tables import MAX_KEY
from runtime.template import OWN_VARIABLES

MAX_CHOICES = 8
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Of `reasoning_effort`, in OpenAI's words and those of models."""
MAX_NAME = 64
"""Characters of a key of the metadata; longer names are cut in errors."""
_MAX_PAIRS, _MAX_VALUE = 16, 512
_MAX_REFERENCE = 50_000
"""`metadata.reference` may be longer than other labels: it may hold a test suite."""
_MAX_BIASES, _MAX_BIAS = 1024, 100.0
_MAX_DIGITS = 9
_MAX_VARIABLES = 16
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_VARIABLE_TEXT = re.compile(r"[\w .:+-]{0,64}")
"""Such a text cannot contain a control string."""


class _Bound(NamedTuple):
    low: float
    high: float | None
    remark: str = ""
    without_low: bool = False

    def holds(self, value: float) -> bool:
        if value < self.low or (self.without_low and value == self.low):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        if self.high is None:
            return f"must be at least {self.low:g}"
        return f"must lie in {'(' if self.without_low else '['}{self.low:g}, {self.high:g}]"


BOUNDS = {
    "n": _Bound(1, MAX_CHOICES),
    "temperature": _Bound(0, 2, "; 0 is greedy"),
    "top_p": _Bound(0, 1, without_low=True),
    "top_k": _Bound(-1, 2**31 - 1, "; 0 is off"),
    "min_p": _Bound(0, 1, "; 0 is off"),
    "frequency_penalty": _Bound(-2, 2, "; 0 is off"),
    "presence_penalty": _Bound(-2, 2, "; 0 is off"),
    "repetition_penalty": _Bound(0, 10, "; 1 is off", without_low=True),
    "max_tokens": _Bound(1, None),
    "max_completion_tokens": _Bound(1, None),
    "top_logprobs": _Bound(0, MAX_TOP_LOGPROBS),
}
_SEEDS = range(-(2**63), 2**63)


def unserved(param: str, remedy: str = "leave it out") -> Unsupported:
    """The refusal of a field that would change the answer."""
    return Unsupported(f"`{param}` is not supported; {remedy}", param=param)


def check_one_of(param: str, value: str | None, known: Collection[str]) -> None:
    """Raises InvalidRequest if a text is none of these."""
    if value is not None and value not in known:
        raise field_error(param, f"is one of {', '.join(known)}, not {value[:MAX_NAME]!r}")


def check_numbers(request: Any) -> None:
    """Check every number that the request has. Raises InvalidRequest: one is out of bounds; `param` names it."""
    for name, bound in BOUNDS.items():
        value = getattr(request, name, None)
        if value is not None and not bound.holds(value):
            raise field_error(name, f"{bound}, not {value}{bound.remark}")
    check_one_of("reasoning_effort", getattr(request, "reasoning_effort", None), EFFORTS)
    if request.seed is not None and request.seed not in _SEEDS:
        raise field_error("seed", f"must be a signed 64-bit number, not {request.seed}")


def check_stops(stops: tuple[str, ...]) -> None:
    """Raises InvalidRequest if there are too many stop strings, or an empty one."""
    if len(stops) > MAX_STOPS or "" in stops:
        raise field_error("stop", f"takes up to {MAX_STOPS} strings, none of them empty")


def check_biases(biases: Mapping[str, float]) -> dict[int, float]:
    """The biases by token id, without those of 0: they change nothing, so the sample stays on support. Raises InvalidRequest."""
    name = "logit_bias"
    if len(biases) > _MAX_BIASES:
        raise field_error(name, f"takes up to {_MAX_BIASES:,} tokens, not {len(biases):,}")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= _MAX_DIGITS):
            raise field_error(name, f"maps token ids, in digits, to numbers, not {token[:MAX_NAME]!r}")
        if not -_MAX_BIAS <= bias <= _MAX_BIAS:
            lies = f"must lie in [-{_MAX_BIAS:g}, {_MAX_BIAS:g}], not {bias}"
            raise InvalidRequest(f"{name}: the bias of {token} {lies}", param=name)
    return {int(token): bias for token, bias in biases.items() if bias}


def check_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of `chat_template_kwargs`.

    Raises InvalidRequest: too many, a name that only the template's caller may set, or a text that may hold a control string.
    """
    where = "chat_template_kwargs"
    if len(variables) > _MAX_VARIABLES:
        raise field_error(where, f"takes up to {_MAX_VARIABLES} variables, not {len(variables)}")
    for name, value in variables.items():
        shown = name[:MAX_NAME]
        if not _VARIABLE.fullmatch(name) or name in OWN_VARIABLES or name.endswith("_token"):
            raise InvalidRequest(f"{where}: a request may not set {shown!r}", param=where)
        if isinstance(value, str) and not _VARIABLE_TEXT.fullmatch(value):
            takes = f"takes up to {MAX_NAME} letters, digits, spaces and the characters . : + - _"
            raise InvalidRequest(f"{where}: {shown} {takes}", param=where)
    return dict(variables)


def check_group(name: str | None, param: str) -> None:
    """Raises InvalidRequest if a group of sessions cannot have this name."""
    if name is not None and not (1 <= len(name) <= MAX_NAME and name.isprintable()):
        raise field_error(param, f"takes 1 to {MAX_NAME} printable characters")


def check_metadata(pairs: Mapping[str, str]) -> None:
    """Raises InvalidRequest if there are too many pairs, or one is too long or has a NUL."""
    if len(pairs) > _MAX_PAIRS:
        raise field_error("metadata", f"takes up to {_MAX_PAIRS} pairs, not {len(pairs)}")
    for key, value in pairs.items():
        if len(key) > MAX_NAME or len(value) > (_MAX_REFERENCE if key == "reference" else _MAX_VALUE):
            raise InvalidRequest(
                f"metadata: keys take up to {MAX_NAME} characters and values up to {_MAX_VALUE}, `reference` up to "
                f"{_MAX_REFERENCE:,}; {key[:MAX_NAME]!r} has {len(value):,}",
                param="metadata",
            )
        if "\0" in key or "\0" in value:
            why = "has a NUL character, which PostgreSQL cannot store; leave it out"
            raise InvalidRequest(f"metadata: {key!r} {why}", param="metadata")
    check_group(pairs.get("session_group"), "metadata.session_group")
    join_key = pairs.get("join_key")
    if join_key is not None and (not 1 <= len(join_key) <= MAX_KEY or "\0" in join_key):
        takes = f"takes 1 to {MAX_KEY} characters and no NUL, not {len(join_key)} characters"
        raise field_error("metadata.join_key", f"{takes}; signals refer to the answer by it")
