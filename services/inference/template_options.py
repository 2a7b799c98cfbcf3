"""`chat_template_kwargs`: the options of a chat template, such as `enable_thinking`. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from contracts.errors import InvalidRequest

_EFFORT = "reasoning_effort"


def known_options(options: Mapping[str, Any], effort: str | None, known: Collection[str]) -> Mapping[str, Any]:
    """The options that the template reads, `reasoning_effort` among them. What it does not read would change nothing.

    Args:
        options: `chat_template_kwargs`, checked by `check_variables`.
        effort: `reasoning_effort` of the request.
        known: the variables of the template that a caller may set.

    Raises:
        InvalidRequest: the options name another effort.
    """
    if effort is not None:
        if options.get(_EFFORT, effort) != effort:
            raise InvalidRequest(
                f"{_EFFORT} and chat_template_kwargs.{_EFFORT} differ; send one of them", param=_EFFORT
            )
        options = {**options, _EFFORT: effort}
    return {name: value for name, value in options.items() if name in known}
