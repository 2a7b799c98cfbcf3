"""Writes what docs/settings.md and docs/watching.md take from the code: `python -m tests.upkeep.manual_pages`.

Settings come from the docstrings of their classes, alarms from the annotations of `deploy/alerts.yml`. Each stands between two comments
of its page; the rest of the page is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from commands.sections import KINDS, followed_kinds
from runtime.settings import Section, Settings
from tests.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent.parent
SECTIONS: dict[str, type[Section]] = {"millrace": Settings, **KINDS, **followed_kinds()}


def alarms() -> str:
    """An entry for each alarm, with what to do."""
    groups = read_yaml(ROOT / "deploy" / "alerts.yml")["groups"]
    return "\n".join(_alarm(rule) for group in groups for rule in group["rules"])


def settings() -> str:
    """A list for each section."""
    return "\n".join(_section(name, kind) for name, kind in SECTIONS.items())


PARTS: dict[str, tuple[Path, Callable[[], str]]] = {
    "alarms": (ROOT / "docs" / "watching.md", alarms),
    "settings": (ROOT / "docs" / "settings.md", settings),
}


def written(name: str) -> str:
    """The page that holds a part, with the part as the code has it now."""
    page, made = PARTS[name]
    pattern = re.compile(rf"(<!-- begin {name}: [^\n]*-->\n).*?(<!-- end {name} -->)", re.DOTALL)
    text, count = pattern.subn(lambda marks: f"{marks[1]}\n{made()}\n{marks[2]}", page.read_text())
    if count != 1:
        raise ValueError(f"{page.name} has no comments that begin and end {name}")
    return text


def _alarm(rule: dict[str, Any]) -> str:
    notes = rule["annotations"]
    runbook = notes.get("runbook", "").removeprefix("docs/")
    more = f" [More]({runbook})." if runbook else ""
    return f"### {rule['alert']}\n{rule['labels']['severity']}. {notes['description'].strip()}{more}\n"


def _section(name: str, kind: type[Section]) -> str:
    rows = [
        f"- `{setting}` ({_default(field)}): {' '.join((field.description or '').split())}"
        for setting, field in _own_first(kind)
    ]
    return "\n".join([f"## `[{name}]`\n", *rows, ""])


def _own_first(kind: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Fields of a class, those of the classes below it last."""
    own = [name for name in kind.model_fields if name in vars(kind)["__annotations__"]]
    for name in (*own, *(name for name in kind.model_fields if name not in own)):
        yield name, kind.model_fields[name]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, bool | str | tuple):
        return f"`{json.dumps(field.default)}`"
    return f"{field.default:g}" if field.default < 1 else f"{field.default:.0f}"


if __name__ == "__main__":
    for part, (place, _) in PARTS.items():
        place.write_text(written(part))
