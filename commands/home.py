"""Makes a home ready: settings, tables, keys, the base policy as version 0, and `live` pointing at it.

Run again, it writes the settings of that start and makes only what is missing: the run goes on, with the same policy.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from commands.keys import make_first_keys
from commands.queries import has_keys
from contracts import assignments
from contracts.assignments import LIVE
from contracts.errors import Forbidden, InvalidSettings, NotFound, Unauthorized
from contracts.event_log import EventLog
from contracts.keys import check_key, create_key
from rewards.preflight import check_tasks
from rewards.silence_warnings import propose_expected
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_key import engine_key
from runtime.integrity import check_files, damaged_records
from runtime.log.loss_detection import note, read_positions, require_same_log
from runtime.passwords import check_passwords
from runtime.private_files import create_private_files, make_private
from runtime.settings import Section, Settings, load_settings, write_settings
from services.inference.template import load_template
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.stores.store import WeightStore
from weights.tensors import Tensor, Tensors, read_safetensors, root_of
from weights.versions.keys import signer_of


class Home(NamedTuple):
    """A home that is ready. `app_key` is None if it was printed at an earlier start."""

    settings: Settings
    operator_key: str
    app_key: str | None


@contextmanager
def claimed(home: Path) -> Iterator[None]:
    """One supervisor a home: a second would start every process twice. Ends with this process, however it ends.

    A start that was refused before it made anything leaves no folder behind.

    Raises:
        InvalidSettings: another one runs in this home, or the folder cannot be made.
    """
    path = home / "up.lock"
    made = [place for place in (path, home) if not place.exists()]
    create_private_files()
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise InvalidSettings(f"{home} cannot be used: {error.strerror}; choose another with --home") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidSettings(f"Millrace runs in {home} already; end it first, or choose another --home") from None
        if not (path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno()))):
            raise InvalidSettings(f"another start in {home} was refused at this moment; try again")
        try:
            make_private(home)
            yield
        finally:
            _unmake(made, path)


def _unmake(made: list[Path], lock: Path) -> None:
    """Take away what `claimed` made, if nothing came to it since. The lock is still held."""
    with suppress(OSError):  # a home that is gone, or a folder that something is mounted on
        if made and list(lock.parent.iterdir()) == [lock]:
            for place in made:
                if place == lock:
                    place.unlink()
                else:
                    place.rmdir()


def prepare_home(settings: Settings, sections: dict[str, Section]) -> Home:
    """See the module docstring.

    Raises:
        InvalidTask, InvalidSettings: before anything is written.
        LogLost, PositionLost: the log is not the one of the database, or less of it; nothing was written.
        Damaged: a file of the home is not what was written.
        Unavailable: the log or the database cannot be used.
    """
    check_passwords(settings, os.environ)
    tasks = check_tasks(settings.tasks, settings.web_url, print)
    is_started = (settings.home / "millrace.toml").exists()
    if is_started:
        settings = _continued(settings, load_settings(settings.home))
    base = Path(settings.base)
    if not base.is_dir():
        raise InvalidSettings(f"policy folder {base} does not exist")
    load_template(settings.base)
    target = to_bf16(read_safetensors(base))
    if not is_started:  # where keys went missing later, or were taken away, only a person may put others in their place
        make_first_keys(settings.home)
    store = open_weight_store(settings, publishes=True)
    begun_with = _base_root(store, settings.policy)
    is_new = begun_with is None
    signer = signer_of(settings) if is_new else None
    if begun_with not in {None, root_of(target)}:
        raise InvalidSettings(
            f"the weights in {base} are not those that {settings.home} began with; restore them, or choose another --home"
        )
    check_files(settings)
    database = settings.database()
    migrate(database)
    log = settings.event_log()
    require_same_log(database, log, settings.home)
    log.create_topics()
    note(database, log.describe(), time.time())
    if settings.kafka is None:
        _name_damaged(database, log)
    log.close()
    operator_file = settings.home / "operator.key"
    _check_database(database, settings, store.versions(settings.policy), operator_file)
    propose_expected(tasks, database, print)
    write_settings(settings, sections)
    if is_new:
        publish_version(
            store,
            policy=settings.policy,
            run=settings.run,
            version=0,
            parent=None,
            base=None,
            target=target,
            step=0,
            epoch=0,
            num_samples=0,
            created_at=time.time(),
            signer=signer,
        )
    # After everything that may fail: they are printed once.
    app_key = None
    with database.transaction() as connection:
        if not has_keys(connection):
            app_key = create_key(connection, "app")
            _write_secret(operator_file, create_key(connection, "operator"))
    engine_key(settings.home)
    token_file = settings.home / "dashboard.token"
    if not token_file.exists():
        _write_secret(token_file, secrets.token_urlsafe(24))
    with database.transaction() as connection:
        assignments.note_run(connection, settings.policy, settings.run)
        if LIVE not in assignments.read(connection, settings.policy):
            assignments.move(
                connection,
                policy=settings.policy,
                arm=LIVE,
                version=0,
                expected_epoch=0,
                writer="up",
                reason="base policy",
                share=1.0,
                root=store.manifest(settings.policy, 0).target_root,
                run=settings.run,
            )
    database.close()
    return Home(settings, operator_file.read_text().strip(), app_key)


def _base_root(store: WeightStore, policy: str) -> str | None:
    """What version 0 adds up to; None: it was never published. Raises WeightsRefused: something else has its place."""
    try:
        return store.manifest(policy, 0).target_root
    except NotFound:
        return None


def _check_database(database: Database, settings: Settings, versions: list[int], operator_file: Path) -> None:
    """Raises InvalidSettings if database, home and weight store are not of one run."""
    with database.snapshot() as connection:
        known, arms = has_keys(connection), assignments.read(connection, settings.policy)
        if known and operator_file.exists():
            _check_operator(connection, operator_file)
    if known and not operator_file.exists():
        raise InvalidSettings(
            f"the database holds the keys of another home, and {operator_file} does not exist: restore millrace.toml and "
            "operator.key of that home, or give this one a database of its own"
        )
    live = arms[LIVE].version if LIVE in arms else None
    if live is not None and live not in versions:
        raise InvalidSettings(
            f"{settings.policy} serves version {live}, and the weight store ({settings.weights_url or settings.weights}) has "
            f"{versions or 'none'}: restore it, or begin anew with another database and --home"
        )


def _name_damaged(database: Database, log: EventLog) -> None:
    """One bad record costs one record: it is said at the start, and buried when its turn comes."""
    with database.snapshot() as connection:
        positions = read_positions(connection)
    for record in damaged_records(log, positions):
        print(
            f"{record.topic}/{record.partition} {record.offset} is not what was appended: the disk changed its bits. Who reads "
            "it buries it (dead_letter); check the disk",
            flush=True,
        )


def _check_operator(connection: Connection, file: Path) -> None:
    try:
        check_key(connection, f"Bearer {file.read_text().strip()}").require_operator()
    except (Forbidden, Unauthorized, ValueError) as error:  # ValueError: it is no text
        raise InvalidSettings(
            f"{file} does not hold an operator key that this database knows: it was changed, or is of another home. Restore it, "
            f"or make one: millrace keys --role operator --home {file.parent} > {file}"
        ) from error


def _continued(settings: Settings, held: Settings) -> Settings:
    """Settings for a home that was started before: checkpoints and log there belong to one run of one policy."""
    if settings.policy != held.policy:
        raise InvalidSettings(
            f"{held.home} holds the policy {held.policy!r}, not {settings.policy!r}; choose another --home"
        )
    servers = ("database_url", "kafka", "kafka_session_seconds", "redis", "weights_url")
    written = ("requests_per_minute", "signals_per_minute", "weights_unsigned")
    update = {name: getattr(settings, name) or getattr(held, name) for name in servers}
    update |= {name: getattr(settings if name in settings.model_fields_set else held, name) for name in written}
    return settings.model_copy(update={"run": held.run, **update})


def to_bf16(tensors: Tensors) -> Tensors:
    """The published form of a policy: every float tensor as bf16, rounded to nearest even."""
    return {name: _bf16(tensor) for name, tensor in tensors.items()}


def _bf16(tensor: Tensor) -> Tensor:
    if tensor.dtype not in {"F32", "F16"}:
        return tensor
    source = np.float32 if tensor.dtype == "F32" else np.float16
    bits = tensor.data.view(source).astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return Tensor("BF16", tensor.shape, rounded.view(np.uint8))


def _write_secret(path: Path, secret: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
