"""One home folder, one file of settings. `millrace up` writes it; every process reads it.

<home>/millrace.toml     these settings; each process has a section of its own beside [millrace]
<home>/millrace.db       tables, positions, outboxes
<home>/log/<topic>.db    the embedded log
<home>/weights/          the weight store
<home>/replica/          what the engine serves, on its own disk, where the weight store is a bucket
<home>/keys/             who signs versions, and whose versions are taken
<home>/checkpoints/      the trainer's truth
<home>/logs/             what the processes print
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from contracts.errors import InvalidSettings
from contracts.event_log import EventLog
from contracts.record_checks import MAX_NAME
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.replicas import ReplicaLinks
from runtime.replicas.in_process import local_links

SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel):
    """Base of all settings: frozen, no extras, documented by the line under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Settings(Section):
    """What every process must agree on: the section [millrace]."""

    home: Path
    """The folder that holds everything."""
    run: str
    """Name of this run; versions of different runs never mix."""
    policy: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=MAX_NAME)
    """Name under which apps ask for the policy: the `model` of a request."""
    base: str
    """Folder or hub id of the base policy."""
    tasks: tuple[Path, ...] = Field(min_length=1)
    """Task files; the first is the default task."""
    web_host: str = "127.0.0.1"
    """Address that the HTTP endpoint binds."""
    web_port: int = Field(default=8400, ge=1, le=65535)
    """Port of inference, feedback and dashboard."""
    engine_host: str = "127.0.0.1"
    """Address that the engine binds."""
    engine_port: int = Field(default=8401, ge=1, le=65535)
    """Port of the engine."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where engine and trainer compute: cpu, cuda or cuda:N."""
    feedback_host: str | None = None
    """Address of feedback as a process of its own, if not that of `web`."""
    feedback_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of feedback as a process of its own; without it one process, `web`, serves inference, feedback, dashboard."""
    dashboard_host: str | None = None
    """Address of the dashboard as a process of its own, if not that of `web`."""
    dashboard_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the dashboard as a process of its own."""
    database_url: str | None = None
    """`postgresql+psycopg://user@host/name`; without it SQLite in the home."""
    kafka: str | None = None
    """`host:port` of brokers, several with commas; without it the embedded log in the home."""
    kafka_session_seconds: float | None = Field(default=None, ge=6, le=1800)
    """Silence after which Kafka gives a worker's partitions to its replicas, within the broker's bounds; else 15."""
    redis: str | None = None
    """`redis://host:port/0`, what replicas tell each other in passing; without it each process only knows itself."""
    requests_per_minute: int = Field(default=6_000, ge=0, le=1_000_000)
    """Chat requests that one key may send in a minute, over all replicas; 0: as many as it likes. Operators' always may."""
    signals_per_minute: int = Field(default=30_000, ge=0, le=1_000_000)
    """Signals that one key may send in a minute, likewise."""
    weights_url: str | None = None
    """`s3://bucket/prefix`; without it a folder in the home. Keys and endpoint come from AWS_* variables."""
    weights_unsigned: bool = False
    """Take versions that nobody signed: anybody who can write to the weight store decides what is served."""

    @property
    def web_url(self) -> str:
        """Where apps point their client, without `/v1`."""
        return f"http://{self.web_host}:{self.web_port}"

    @property
    def is_split(self) -> bool:
        """Inference, feedback and dashboard are processes of their own, not parts of `web`."""
        return self.feedback_port is not None and self.dashboard_port is not None

    @property
    def feedback_url(self) -> str:
        """Where apps send feedback, without `/v1`."""
        return f"http://{self.feedback_host or self.web_host}:{self.feedback_port or self.web_port}"

    @property
    def dashboard_url(self) -> str:
        """Where operators look."""
        return f"http://{self.dashboard_host or self.web_host}:{self.dashboard_port or self.web_port}"

    @property
    def engine_url(self) -> str:
        """Where inference finds the engine."""
        return f"http://{self.engine_host}:{self.engine_port}"

    @property
    def weights(self) -> Path:
        """The folder of the weight store."""
        return self.home / "weights"

    @property
    def checkpoints(self) -> Path:
        """The folder of the trainer's checkpoints."""
        return self.home / "checkpoints"

    def database(self) -> Database:
        """The database of this home."""
        return Database(self.database_url or f"sqlite:///{self.home / 'millrace.db'}")

    def event_log(self) -> EventLog:
        """The log of this home; on Kafka its topics carry policy and run in their names."""
        if self.kafka is None:
            return LocalLog(self.home / "log")
        # The client costs time and memory that embedded need not pay.
        from runtime.log.kafka import SESSION_SECONDS, KafkaLog  # noqa: PLC0415

        session = self.kafka_session_seconds or SESSION_SECONDS
        return KafkaLog(self.kafka, prefix=f"{self.policy}.{self.run}.", session=session)

    def replica_links(self) -> ReplicaLinks:
        """What a process of this home tells its replicas in passing; without Redis it only knows itself."""
        if self.redis is None:
            return local_links()
        from runtime.replicas.on_redis import connect  # noqa: PLC0415 as of Kafka

        return connect(self.redis, prefix=f"{self.policy}.{self.run}.")


def load_settings(home: Path) -> Settings:
    """Read the section [millrace].

    Raises:
        InvalidSettings: the file is missing or wrong; the message names file and field.
    """
    return load_section(home, "millrace", Settings)


def load_section(home: Path, name: str, kind: type[SectionType]) -> SectionType:
    """Read a process's own section; a missing one means its defaults."""
    path = home / "millrace.toml"
    content = read_settings(path)
    if content is None:
        raise InvalidSettings(f"{path} does not exist; start Millrace once with: millrace up --home {home}")
    return make_section(f"{path}: [{name}]", kind, **content.get(name, {}))


def make_section(where: str, kind: type[SectionType], **values: Any) -> SectionType:
    """Settings from values that a person gave.

    Raises:
        InvalidSettings: `where`, the field and what is wrong with it.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidSettings(f"{where} {field}: {first['msg']}") from error


def read_settings(path: Path) -> dict[str, Any] | None:
    """The whole file, unchecked; None if there is none."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise InvalidSettings(f"{path}: {error}") from error


def sentinels_of_home(home: Path) -> Path | None:
    """The sentinel file that a home was started with."""
    content = read_settings(home / "millrace.toml") or {}
    path = content.get("release", {}).get("sentinels")
    return None if path is None else Path(path)


def write_settings(settings: Settings, sections: Mapping[str, Section]) -> Path:
    """Write the file that every process of this home reads; returns its path.

    What a person wrote into an earlier one stays, unless `sections` was told otherwise (a field that was set).

    Raises:
        InvalidSettings: the earlier file is wrong; nothing was written.
    """
    path = settings.home / "millrace.toml"
    held = read_settings(path) or {}
    told = {
        name: {**held.get(name, {}), **section.model_dump(exclude_unset=True)} for name, section in sections.items()
    }
    merged = {name: make_section(f"{path}: [{name}]", type(sections[name]), **told[name]) for name in sections}
    written = {name: section.model_dump(mode="json") for name, section in merged.items()}
    lines = _toml_section("millrace", settings.model_dump(mode="json"))
    for name, values in {**held, **written}.items():
        if name != "millrace":
            lines += ["", *_toml_section(name, values)]
    settings.home.mkdir(parents=True, exist_ok=True)
    # Addresses of servers may hold passwords.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def _toml_section(name: str, values: dict[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items() if value is not None)]


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # what JSON escapes, TOML escapes alike
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return str(value)
