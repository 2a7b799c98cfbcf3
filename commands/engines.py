"""Which engine `up` and `demo` start, and what it cannot do. In: options. Out: settings and processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from contracts.assignments import CANDIDATE, LIVE
from contracts.errors import InvalidSettings, Unavailable
from engines import registry
from engines.following.joining import check_server
from engines.following.settings import FollowedSection
from engines.registry import FOLLOWED, KINDS, followed_of, kind_of, why_gone
from runtime.engine_key import authorization, engine_key
from runtime.engine_rows import read_engines
from runtime.settings import Section, Settings, make_section
from services.engine.settings import EngineSettings

_ASK_SECONDS = 10.0


class EngineChoice(NamedTuple):
    """The engine of a home."""

    kind: str
    servers: FollowedSection | None = None
    """Of the servers of another project that are followed."""
    num_own: int = 1
    """How many of our engine's processes are started."""
    own: EngineSettings | None = None
    """What the command line says of our engine; None: nothing."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Processes to start beside the usual ones."""
        return () if self.servers is None else (self.kind,)

    @property
    def sections(self) -> dict[str, Section]:
        """Settings of engines."""
        found: dict[str, Section | None] = {"engine": self.own, self.kind: self.servers}
        return {name: section for name, section in found.items() if section is not None}

    @property
    def start_seconds(self) -> float:
        """How long it may take until everything is ready."""
        return kind_of(self.kind).start_seconds

    def limits(self) -> list[str]:
        """What this choice cannot do, for the operator."""
        if self.num_own or (self.servers is not None and CANDIDATE in self.servers.slots):
            return []
        return [
            "no engine has a slot for the arm candidate: new versions cannot be gated, so none is served (two servers have one)"
        ]


OWN = EngineChoice(registry.OWN)


def choose_engine(
    kind: str,
    python: Path | None,
    replicas: int,
    num_own: int | None = None,
    urls: Sequence[str] = (),
    *,
    slots: str | None = None,
) -> EngineChoice:
    """The choice that the options of the command line make.

    Args:
        kind: a name of `KINDS`.
        python: the interpreter of the servers' environment; None: the kind's own default.
        replicas: servers to start: the first serves live, the second candidate, further ones live.
        num_own: of our engine; None: one, or none beside others.
        urls: servers that run already, instead of `replicas` new ones. With our own kind they stand beside ours.
        slots: arms, with commas: one for each server, instead of `replicas`; without servers, those that each of our replicas holds.
            None: the defaults.

    Raises:
        InvalidSettings: another kind, no such interpreter, or slots that make no sense.
    """
    if kind not in KINDS:
        raise InvalidSettings(f"--engine is {' or '.join(KINDS)}, not {kind!r}{why_gone(kind)}")
    arms = None if slots is None else tuple(name.strip() for name in slots.split(","))
    if kind == registry.OWN and not urls:
        if num_own == 0:
            raise InvalidSettings(f"--engines 0 leaves no engine; add --engine {FOLLOWED[0]}")
        own = None if arms is None else make_section("--slots: [engine]", EngineSettings, slots=arms)
        return OWN._replace(num_own=num_own or 1, own=own)
    is_beside = kind == registry.OWN
    name = FOLLOWED[0] if is_beside else kind
    servers = followed_of(name).choose(python, arms or _slots(len(urls) or replicas), urls)
    return EngineChoice(name, servers, int(is_beside) if num_own is None else num_own)


def _slots(num_servers: int) -> tuple[str, ...]:
    return (LIVE, CANDIDATE, *[LIVE] * (num_servers - 2))[: max(1, num_servers)]


def check_given(choice: EngineChoice, settings: Settings) -> None:
    """Check before a process starts that the engine can serve this policy, and the servers of `--engine-url`.

    Raises:
        InvalidSettings: the engine cannot take versions of this policy; or a given server is not there, was started in a way that cannot be followed, or serves another model.
    """
    if choice.servers is None:
        return
    followed = followed_of(choice.kind)
    followed.check_policy(settings)
    headers = authorization(engine_key(settings.home))
    for url in choice.servers.urls:
        with httpx.Client(base_url=url, headers=headers, timeout=_ASK_SECONDS) as client:
            try:
                facts = followed.drive(client).facts()
            except Unavailable as error:
                raise InvalidSettings(f"--engine-url {url}: {error.message}") from error
        check_server(facts, Path(settings.base), url)


def check_announced(settings: Settings) -> None:
    """Check that no replica of a kind that this release lacks announces itself.

    Raises:
        InvalidSettings: one does; names it.
    """
    database = settings.database()
    try:
        rows = read_engines(database, settings.policy)
    finally:
        database.close()
    for row in rows:
        if row.kind not in KINDS and row.is_fresh(time.time()):
            raise InvalidSettings(
                f"the engine {row.name} at {row.url} announces itself as {row.kind}, which this release has not{why_gone(row.kind)}; "
                "end the process that announces it"
            )
