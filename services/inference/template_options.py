"""`chat_template_kwargs`: the options of a chat template, such as `enable_thinking`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from contracts.errors import InvalidRequest, Unsupported

_EFFORT = "reasoning_effort"
_PARAM = "chat_template_kwargs"
_MOST = 16
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_LONGEST = 256
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})


def check_options(options: Mapping[str, Any], known: Collection[str], reserved: Collection[str]) -> None:
    """Refuse options that the template would ignore, and values that are not plain.

    Args:
        options: what the caller sent.
        known: the variables of the template.
        reserved: variables that are not the caller's: special tokens and functions.

    Raises:
        InvalidRequest: the message names the option.
    """
    if len(options) > _MOST:
        raise InvalidRequest(f"{_PARAM} takes up to {_MOST} options, not {len(options)}", param=_PARAM)
    for name, value in options.items():
        if not _NAME.fullmatch(name) or name in _OURS or name in reserved or name not in known:
            raise InvalidRequest(
                f"{_PARAM}: the chat template of this policy has no option {name[:64]!r}; leave it out", param=_PARAM
            )
        if not isinstance(value, bool | int | float | str | None) or (isinstance(value, str) and len(value) > _LONGEST):
            raise InvalidRequest(
                f"{_PARAM}.{name} is a boolean, a number, null or a text of up to {_LONGEST} characters", param=_PARAM
            )


def with_effort(options: Mapping[str, Any], effort: str | None, known: Collection[str]) -> Mapping[str, Any]:
    """The options with `reasoning_effort`, for a template that has such a variable.

    Raises:
        Unsupported: the template has none, so an effort other than the usual one would change nothing.
        InvalidRequest: the options name another effort.
    """
    if effort is None:
        return options
    if _EFFORT not in known:
        if effort == "medium":
            return options
        raise Unsupported(
            f"the chat template of this policy has no `{_EFFORT}`; leave it out, or use an option of its own in `{_PARAM}`",
            param=_EFFORT,
        )
    if options.get(_EFFORT, effort) != effort:
        raise InvalidRequest(f"{_EFFORT} and {_PARAM}.{_EFFORT} differ; send one of them", param=_EFFORT)
    return {**options, _EFFORT: effort}
