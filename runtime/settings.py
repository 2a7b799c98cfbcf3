"""One home folder, one file of settings. `millrace up` writes it; every process reads it.

<home>/millrace.toml     these settings; each process has a section of its own beside [millrace]. Or elsewhere: `settings_file`
<home>/millrace.db       tables, positions, outboxes
<home>/log/<topic>.db    the embedded log
<home>/sessions.db       tokens of sessions, for their next call
<home>/weights/          the weight store
<home>/replica/          the engine's copy of the version that it serves, where the weight store is a bucket
<home>/keys/             the key that signs versions, and the keys whose versions are trusted
<home>/checkpoints/      the trainer's state
<home>/logs/             what the processes print
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sqlalchemy import Connection

from contracts.errors import InvalidSettings
from contracts.event_log import NUM_PARTITIONS, EventLog
from contracts.files import read_small
from contracts.record_checks import MAX_NAME
from runtime.database import Database
from runtime.kafka_settings import KafkaSettings
from runtime.log.local import LocalLog
from runtime.replicas import ReplicaLinks
from runtime.replicas.in_process import local_links
from runtime.replicas.on_disk import DiskSessionStore
from runtime.settings_file import FILE_NAME, SETTINGS, expanded, is_given, settings_file

Origin = Annotated[str, Field(pattern=r"^https?://[a-z0-9.-]+(:[0-9]+)?$")]
SectionType = TypeVar("SectionType", bound="Section")


def _split(given: object) -> object:
    """A list that was written as one text, with commas: the value of an option."""
    return tuple(given.split(",")) if isinstance(given, str) else given


class Section(BaseModel):
    """Base of all settings: frozen, without unknown fields; the line under each field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Settings(KafkaSettings, Section):
    """The section [millrace], which all processes of a home share."""

    home: Path
    """The folder that holds everything."""
    run: str
    """Name of this run. Versions of different runs never mix."""
    policy: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=MAX_NAME)
    """Name of the policy: apps send it as the `model` of a request."""
    base: str
    """Folder or Hugging Face id of the base policy. Empty: a provider answers, see `[provider]`."""
    tasks: tuple[Path, ...] = Field(min_length=1)
    """Task files; the first is the default task."""
    web_host: str = "127.0.0.1"
    """Address at which others reach inference. Inference binds it too, unless `MILLRACE_BIND` is set."""
    web_port: int = Field(default=8400, ge=1, le=65535)
    """Port of inference; or of `web`, if it serves all three."""
    engine_host: str = "127.0.0.1"
    """Address of the engine, with the same rules."""
    engine_port: int = Field(default=8401, ge=1, le=65535)
    """Port of the engine."""
    region: str = Field(default="local", pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=60)
    """Where the processes of this home run. Inference asks engines of its own region, and others only while none of those serves."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where engine and trainer compute: cpu, cuda or cuda:N."""
    feedback_host: str | None = None
    """Address of feedback as its own process; by default `web_host`."""
    feedback_port: int | None = Field(default=None, ge=1, le=65535)
    """Its port. Without it, one process `web` serves inference, feedback and dashboard."""
    feedback_origins: Annotated[tuple[Origin, ...], BeforeValidator(_split)] = ()
    """Sites whose pages may send feedback: `https://app.example`."""
    dashboard_host: str | None = None
    """Address of the dashboard as its own process; by default `web_host`."""
    dashboard_port: int | None = Field(default=None, ge=1, le=65535)
    """Its port."""
    database_url: str | None = None
    """`postgresql+psycopg://user@host/name`. Without it, SQLite in the home."""
    partitions: int = Field(default=NUM_PARTITIONS, ge=4, le=256)
    """Partitions of each topic, in the home or on Kafka: as many replicas of episodes and of rewards can share the work. From 4 to
    256; it never changes in a home that was started."""
    redis: str | None = None
    """`redis://host:port/0`, where replicas share rate limits, answers to repeated requests and wake-ups. Without it, each process
    keeps its own."""
    requests_per_minute: int = Field(default=6_000, ge=0, le=1_000_000)
    """Chat requests that one key may send per minute, over all replicas. 0: no limit. Operators' keys have no limit."""
    signals_per_minute: int = Field(default=30_000, ge=0, le=1_000_000)
    """Signals that one key may send per minute, with the same rules."""
    session_seconds: float = Field(default=86_400.0, ge=60, le=2_592_000)
    """How long the tokens of a session, and a stored response, wait for the next call."""
    weights_url: str | None = None
    """`s3://bucket/prefix`. Without it, a folder in the home. Keys and endpoint come from AWS_* variables."""
    weights_unsigned: bool = False
    """Accept unsigned versions. Then anyone who can write to the weight store decides what is served."""

    @property
    def web_url(self) -> str:
        """Base URL of inference for apps, without `/v1`."""
        return f"http://{self.web_host}:{self.web_port}"

    @property
    def is_split(self) -> bool:
        """True if inference, feedback and dashboard run as three processes instead of as `web`."""
        return self.feedback_port is not None and self.dashboard_port is not None

    @property
    def feedback_url(self) -> str:
        """Base URL of feedback for apps, without `/v1`."""
        return f"http://{self.feedback_host or self.web_host}:{self.feedback_port or self.web_port}"

    @property
    def dashboard_url(self) -> str:
        """URL of the dashboard."""
        return f"http://{self.dashboard_host or self.web_host}:{self.dashboard_port or self.web_port}"

    @property
    def engine_url(self) -> str:
        """URL of the engine."""
        return f"http://{self.engine_host}:{self.engine_port}"

    @property
    def weights(self) -> Path:
        """The folder of the weight store."""
        return self.home / "weights"

    @property
    def checkpoints(self) -> Path:
        """The folder of the trainer's checkpoints."""
        return self.home / "checkpoints"

    @property
    def prefix(self) -> str:
        """Begins the names of this home's topics, consumer groups and keys, so that homes can share servers."""
        return f"{self.policy}.{self.run}."

    def database(self) -> Database:
        """The database of this home."""
        return Database(self.database_url or f"sqlite:///{self.home / 'millrace.db'}")

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read the database once; see `Database.snapshot`."""
        with closing(self.database()) as database, database.snapshot() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Write to the database once; see `Database.transaction`."""
        with closing(self.database()) as database, database.transaction() as connection:
            yield connection

    def event_log(self) -> EventLog:
        """The log of this home."""
        if self.kafka is None:
            return LocalLog(self.home / "log", self.partitions)
        # Loading the client takes time and memory, which an embedded home saves.
        from runtime.log.kafka import SESSION_SECONDS, Access, KafkaLog  # noqa: PLC0415

        return KafkaLog(
            self.kafka,
            prefix=self.prefix,
            num_partitions=self.partitions,
            replication=self.kafka_replication,
            min_insync=self.kafka_min_insync,
            session=self.kafka_session_seconds or SESSION_SECONDS,
            access=Access(self),
        )

    def replica_links(self) -> ReplicaLinks:
        """What a process of this home shares with its replicas; without Redis, nothing."""
        if self.redis is None:
            return local_links(DiskSessionStore(self.home / "sessions.db"))
        from runtime.replicas.on_redis import connect  # noqa: PLC0415 as above

        return connect(self.redis, prefix=self.prefix)


def load_settings(home: Path) -> Settings:
    """Read the section [millrace]. Raises InvalidSettings: names file and field."""
    return load_section(home, "millrace", Settings)


def load_section(home: Path, name: str, kind: type[SectionType]) -> SectionType:
    """Read the section of one process. If it is missing, every field has its default."""
    path, content = settings_file(home), read_home_settings(home)
    if content is None:
        remedy = f"{SETTINGS} names it" if is_given() else f"start Millrace once with: millrace up --home {home}"
        raise InvalidSettings(f"{path} does not exist; {remedy}")
    values = content.get(name, {})
    if kind is Settings and is_given():
        values = {**values, "home": home.resolve()}  # one file for many homes
    return make_section(f"{path}: [{name}]", kind, **values)


def read_home_settings(home: Path) -> dict[str, Any] | None:
    """All sections of a home, unchecked; None if the file does not exist. Raises InvalidSettings."""
    path = settings_file(home)
    content = read_settings(path)
    return expanded(content, path) if content is not None and is_given() else content


def make_section(where: str, kind: type[SectionType], **values: Any) -> SectionType:
    """Check values that a person wrote. Raises InvalidSettings: names `where`, the field and the mistake."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = " ".join(filter(None, (where, ".".join(map(str, first["loc"])))))
        raise InvalidSettings(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error


def read_settings(path: Path) -> dict[str, Any] | None:
    """The whole file, unchecked; None if it does not exist."""
    try:
        return tomllib.loads(read_small(path).decode())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deep
        raise InvalidSettings(f"{path}: {error}") from error


def write_settings(settings: Settings, sections: Mapping[str, Section]) -> Path:
    """Write the settings file of a home. Values in it stay, unless `sections` sets that field. Raises InvalidSettings."""
    path = settings.home / FILE_NAME
    held, whole = read_settings(path) or {}, completed(settings.home, sections)
    written = {name: section.model_dump(mode="json") for name, section in whole.items()}
    text = to_toml({**held, **written, "millrace": settings.model_dump(mode="json")})
    settings.home.mkdir(parents=True, exist_ok=True)
    # URLs may contain passwords.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    path.chmod(0o600)
    return path


def _merged(held: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is held, with what is given in its place: of a table only the values that are given."""
    parts = {
        name: _merged(held[name], value) if isinstance(value, dict) and isinstance(held.get(name), dict) else value
        for name, value in given.items()
    }
    return {**held, **parts}


def completed(home: Path, sections: Mapping[str, SectionType]) -> dict[str, SectionType]:
    """Sections as `write_settings` writes them: with the values of the file that they do not set. Raises InvalidSettings."""
    path, found = home / FILE_NAME, {}
    held = read_settings(path) or {}
    for name, section in sections.items():
        given = _merged(held.get(name, {}), section.model_dump(exclude_unset=True))
        found[name] = make_section(f"{path}: [{name}]", type(section), **given)
    return found


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a settings file, [millrace] first. Values that are None are left out."""
    ordered = sorted(sections, key=lambda name: name != "millrace")
    return "\n".join(_toml_section(name, sections[name]) for name in ordered)


def _toml_section(name: str, values: Mapping[str, Any]) -> str:
    lines = (f"{key} = {_toml_value(value)}\n" for key, value in values.items() if value is not None)
    return f"[{name}]\n{''.join(lines)}"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # JSON and TOML escape alike
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
            + " }"
        )
    return str(value)
