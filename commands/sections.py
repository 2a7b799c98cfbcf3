"""The sections of millrace.toml that processes read: all are checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from commands.findings import Finding, missing
from contracts.errors import InvalidSettings
from engines.card_users import GpuSettings
from engines.registry import FOLLOWED, check_section_names, followed_of
from pipelines.episodes.telemetry.settings import TelemetrySettings
from pipelines.release.settings import ReleaseSettings
from pipelines.release.webhooks.settings import WebhookSettings
from pipelines.training.settings import TrainingSettings
from runtime.settings import Section, load_section, read_home_settings
from runtime.settings_file import settings_file
from runtime.train_settings import TrainSettings
from services.engine.settings import EngineSettings
from services.provider import ProviderSettings

KINDS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "engine": EngineSettings,
        "training": TrainingSettings,
        "gpu": GpuSettings,
        "release": ReleaseSettings,
        "train": TrainSettings,
        "webhooks": WebhookSettings,
        "provider": ProviderSettings,
        "telemetry": TelemetrySettings,
    }
)
"""Those of every home."""


def followed_kinds() -> dict[str, type[Section]]:
    """Those of homes that follow servers of other projects."""
    return {name: followed_of(name).section for name in FOLLOWED}


def check_sections(home: Path, given: Collection[str] = ()) -> list[str]:
    """The names of the sections that were checked. Raises InvalidSettings for the first mistake; it names file, section and field.

    `given`: sections that a start completes. Those of followed servers are not checked here: `write_settings` checks the whole one.
    """
    held = read_home_settings(home) or {}
    check_section_names(held, str(settings_file(home)))
    followed = {name: kind for name, kind in followed_kinds().items() if name in held and name not in given}
    for name, kind in {**KINDS, **followed}.items():
        load_section(home, name, kind)
    return [*KINDS, *followed]


def sections_finding(home: Path) -> Finding:
    """What `millrace doctor` says of them."""
    try:
        checked = check_sections(home)
    except InvalidSettings as error:
        return missing("settings", error.message)
    return Finding("settings", True, True, f"millrace.toml: {', '.join(checked)} can be read")
