"""`regex`: the pattern is found in the answer, matches all of it, or is absent from it.

Patterns are RE2's: matching takes time linear in the answer for any pattern. There is no lookaround and no back-reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import re2
from pydantic import Field

from contracts.errors import InvalidTask
from contracts.tasks.section import TaskSection
from rewards.verifiers.check import Answer, Check, Verifier, after_reasoning, read_config, right, wrong

VERSION = 2
_PROBES = ("", "a", "\n~", "0 \u00e9")
_MAX_PATTERN = 10_000


class Config(TaskSection):
    """Settings in the task file."""

    pattern: str = Field(min_length=1, max_length=_MAX_PATTERN)
    """In RE2's syntax. In TOML, use single quotes."""
    must: Literal["match", "search", "absent"] = "search"
    """`match`: the pattern matches the whole answer; `search`: it is found in the answer; `absent`: it is not found."""
    flags: frozenset[Literal["ignore_case", "multi_line", "dot_all"]] = frozenset()
    """`multi_line`: ^ and $ also match at each line; `dot_all`: a dot also matches the end of a line."""
    reasoning: bool = False
    """The pattern sees the reasoning as well, for example to ask for it; else only what follows it."""


def build(config: Mapping[str, Any], _context: object = None) -> Verifier:
    """See `Builder`."""
    rule = read_config(Config, config)
    pattern = compile_pattern(rule.pattern, "pattern", rule.flags)
    finds = pattern.fullmatch if rule.must == "match" else pattern.search
    if all(finds(probe) for probe in _PROBES):
        raise InvalidTask(f"{rule.pattern!r} matches any answer, so it decides nothing", param="pattern")

    def check(answer: Answer) -> Check:
        try:
            found = finds(answer.text)
        except UnicodeEncodeError:
            return wrong("half of a surrogate pair is not text")
        if (found is None) == (rule.must == "absent"):
            return right()
        return wrong(
            f"it has {found.group()[:60]!r}" if found else f"{rule.must} of {rule.pattern[:60]!r} finds nothing"
        )

    return check if rule.reasoning else after_reasoning(check)


def compile_pattern(pattern: str, param: str, flags: frozenset[str] = frozenset()) -> Any:
    """Compile a pattern that runs in linear time. Raises InvalidTask: RE2 does not accept it."""
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = "ignore_case" not in flags
    options.dot_nl = "dot_all" in flags
    try:
        return re2.compile(f"(?m){pattern}" if "multi_line" in flags else pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        hint = "; RE2 has no lookaround and no back-references" if "perl" in said or "escape" in said else ""
        raise InvalidTask(f"{pattern[:80]!r} is not an RE2 pattern: {said}{hint}", param=param) from error
