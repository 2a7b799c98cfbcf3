"""Settings of a home that somebody changes while it runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runtime.settings import to_toml
from runtime.settings_file import settings_file
from tests.adversary.alarms.breaks.kills import kill
from tests.adversary.alarms.world import WatchedHome


@contextmanager
def changed(world: WatchedHome, process: str, section: str, **values: Any) -> Iterator[None]:
    """`millrace.toml` with other values in one section, and the process that reads them killed and started again."""
    path = settings_file(world.home)
    before = path.read_text()
    sections = tomllib.loads(before)
    path.write_text(to_toml({**sections, section: {**sections.get(section, {}), **values}}))
    kill(world, process)
    try:
        yield
    finally:
        path.write_text(before)
        kill(world, process)
