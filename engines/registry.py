"""The kinds of engines. In: the name in rows and after `--engine`. Out: what its folder says of it. A new kind is a line here.

Nothing heavy is imported before a kind is asked for: the command line reads only names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from contracts.errors import InvalidSettings

if TYPE_CHECKING:
    from engines.kind import EngineKind, Followed

OWN = "millrace"
KINDS: Mapping[str, str] = MappingProxyType({OWN: "engines.own.kind", "vllm": "engines.vllm.kind"})
"""Name to the module whose `KIND` has the parts."""
ON_GPU = "vllm"
"""What serves on a GPU where nothing else was asked for."""
FOLLOWED = tuple(name for name in KINDS if name != OWN)
"""Servers of other projects. The process of the same name, with the section of that name, brings them to versions."""
GONE: Mapping[str, str] = MappingProxyType(
    {
        "sglang": "SGLang is not supported any more, because nobody could run it here: serve on vLLM or on our own engine "
        "(docs/engines.md)"
    }
)
"""Kinds that an older release had, and what helps whoever still has them."""


def kind_of(name: str) -> EngineKind:
    """The parts of a kind. Raises InvalidSettings: this release has no such engine."""
    if name not in KINDS:
        raise InvalidSettings(f"there is no engine {name!r}, only {' and '.join(KINDS)}{why_gone(name)}")
    found: EngineKind = importlib.import_module(KINDS[name]).KIND
    return found


def followed_of(name: str) -> Followed:
    """How servers of a kind are followed. Raises InvalidSettings: there is no such kind, or it follows its assignments itself."""
    followed = kind_of(name).followed
    if followed is None:
        raise InvalidSettings(f"the engine {name!r} follows its assignments itself")
    return followed


def only_followed(kinds: Sequence[str] = FOLLOWED) -> str:
    """The kind of a server that runs already, where no option names it. Raises InvalidSettings: there are several kinds."""
    if len(kinds) != 1:
        raise InvalidSettings(
            f"--engine-url does not say what its server is: add --engine {' or '.join(kinds)}; with --engines 1, ours runs beside it"
        )
    return kinds[0]


def why_gone(name: str) -> str:
    """What to say, behind a refusal, of a kind that an older release had; empty for any other name."""
    return f"; {GONE[name]}" if name in GONE else ""


def check_section_names(names: Iterable[str], where: str) -> None:
    """Raises InvalidSettings if a settings file has the section of an engine that left; names it."""
    for name in sorted(GONE.keys() & set(names)):
        raise InvalidSettings(f"{where}: [{name}]{why_gone(name)}; then remove the section")
