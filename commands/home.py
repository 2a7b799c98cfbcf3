"""Prepares a home: settings, tables, keys, the base policy as version 0, and `live` pointing at it; without a base policy none of the last two.

At a later start it writes the settings of that start and makes only what is missing: the run goes on, with the same policy.
Where MILLRACE_SETTINGS names the settings, they are not written, and secrets are taken from the environment instead of made.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection

from commands.keys import make_first_keys
from commands.queries import has_keys
from commands.sections import check_sections
from contracts import assignments
from contracts.assignments import LIVE, PROVIDER
from contracts.checkpoints import CheckpointReport
from contracts.errors import Forbidden, InvalidSettings, NotFound, Unauthorized, WeightsRefused
from contracts.files import read_small
from contracts.keys import check_key, create_key, register_key
from pipelines.training.checkpoints.checkpoint_names import INDEX, STATE, WEIGHTS, names_in
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.state import TrainerState
from rewards.preflight import check_tasks, propose_expected
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_key import engine_key
from runtime.integrity import check_files, damaged_records
from runtime.kafka_settings import KafkaSettings
from runtime.log.loss_detection import note, read_positions, require_same_log
from runtime.operator_key import APP_KEY, OPERATOR_KEY, given_operator_key, operator_file, operator_key
from runtime.passwords import check_passwords
from runtime.private_files import create_private_files, make_private
from runtime.settings import Section, Settings, completed, load_settings, make_section, write_settings
from runtime.settings_file import is_given, settings_file
from runtime.template.chat_template import load_template
from services.provider import load_provider
from weights.adapters import A, AdapterConfig
from weights.files import write_durably
from weights.mapped import map_safetensors
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.stores.store import WeightStore
from weights.tensors import Tensors, read_safetensors, root_of, to_bf16
from weights.versions.keys import signer_of


class Home(NamedTuple):
    """A prepared home. `app_key` is None if an earlier start printed it."""

    settings: Settings
    operator_key: str
    app_key: str | None


@contextmanager
def claimed(home: Path) -> Iterator[None]:
    """Lock a home for one supervisor: a second would start every process twice. The lock ends with this process.

    A start that is refused before it made anything leaves no folder behind. Raises InvalidSettings: Millrace already runs in this home, or the
    folder cannot be made.
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
            raise InvalidSettings(f"Millrace runs in {home} already; stop it first, or choose another --home") from None
        if not (path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno()))):
            raise InvalidSettings(f"another start in {home} is just ending; try again")
        try:
            make_private(home)
            yield
        finally:
            _remove_unused(made, path)


def _remove_unused(made: list[Path], lock: Path) -> None:
    """Remove what `claimed` made, if nothing was added since. The lock is still held."""
    with suppress(OSError):  # the home is gone already, or it is a mount point
        if made and list(lock.parent.iterdir()) == [lock]:
            for place in made:
                (place.unlink if place == lock else place.rmdir)()


def prepare_home(
    settings: Settings, sections: dict[str, Section], inspect: Callable[[Path], CheckpointReport] | None = None
) -> Home:
    """See the module docstring.

    `inspect`: looks at the base policy, see `policy_check.check_policy`. None: its names and tensors are trusted.

    Raises InvalidTask, InvalidSettings: before anything is written; LogLost, PositionLost: the log is not the database's own log, or a part
    of it is missing. Nothing was written; Damaged: a file of the home is damaged; Unavailable: the log or the database cannot be used.
    """
    if is_given():
        _ = operator_key(settings.home), engine_key(settings.home)  # a missing one is refused before anything is made
    check_passwords(settings, os.environ)
    _check_redis(settings)
    if is_started := settings_file(settings.home).exists():
        check_sections(settings.home, given=sections)
        if isinstance(training := sections.get("training"), TrainingSettings):
            check_adapter(settings.checkpoints, completed(settings.home, {"training": training})["training"].adapter)
    tasks = check_tasks(settings.tasks, settings.web_url, print)
    if is_started and not is_given():
        settings = _continued(settings, load_settings(settings.home))
    policy, base = settings.policy, _load_base(settings, inspect) if settings.base else None
    if not is_started:  # if keys are missing later, only a person may replace them
        make_first_keys(settings.home)
    store = open_weight_store(settings, publishes=True)
    stored_root = _base_root(store, policy)
    is_published = base is None or stored_root is not None
    signer = None if is_published else signer_of(settings)
    if base is not None and stored_root not in {None, root_of(base)}:
        differ = f"the weights in {settings.base} differ from those that {settings.home} started with"
        raise InvalidSettings(f"{differ}; restore them, or choose another --home")
    check_files(settings)
    database = settings.database()
    migrate(database)
    _check_log(database, settings)
    _check_database(database, settings, store.versions(policy))
    propose_expected(tasks, database, print)
    if not is_given():
        write_settings(settings, sections)
    if base is not None and not is_published:
        publish_version(
            store,
            policy=policy,
            run=settings.run,
            version=0,
            parent=None,
            base=None,
            target=base,
            step=0,
            epoch=0,
            num_samples=0,
            created_at=time.time(),
            signer=signer,
        )
    # After everything that may fail, because the app key is printed only once.
    app_key = _make_secrets(database, settings.home)
    with database.transaction() as connection:
        assignments.note_run(connection, policy, settings.run)
        if base is not None:
            _point_arms(connection, settings, store)
    database.close()
    return Home(settings, operator_key(settings.home), app_key)


def _point_arms(connection: Connection, settings: Settings, store: WeightStore) -> None:
    """The first time: `live` at the base. A provider in front answers everybody at first: nothing is proven of own versions yet."""
    policy, arms = settings.policy, assignments.read(connection, settings.policy)
    first: dict[str, Any] = {"policy": policy, "expected_epoch": 0, "writer": "up", "share": 1.0, "run": settings.run}
    if LIVE not in arms:
        root = store.manifest(policy, 0).target_root
        assignments.move(connection, arm=LIVE, version=0, reason="base policy", root=root, **first)
    has_front = load_provider(settings) is not None
    if not has_front and (share := assignments.provider_share(arms)):
        raise InvalidSettings(
            f"a provider has {share:.0%} of the users of {policy}, and [provider] is empty: give --provider and --provider-model, or the "
            f"users to the live version: millrace policy provider 0 --home {settings.home}"
        )
    if PROVIDER not in arms and has_front:
        assignments.move(connection, arm=PROVIDER, version=None, reason="a provider in front", **first)


def check_adapter(checkpoints: Path, adapter: AdapterSettings | None) -> None:
    """Raises InvalidSettings if the newest checkpoint that can be read is of another adapter, or of none: the trainer would refuse it."""
    for name in reversed(names_in(checkpoints)):
        try:
            model = msgspec.json.decode(read_small(checkpoints / name / STATE), type=TrainerState).model
            in_pieces = (checkpoints / name / INDEX).is_file()  # they are always of the whole model
            tensors = {} if in_pieces else map_safetensors(checkpoints / name / WEIGHTS)
        except (OSError, msgspec.MsgspecError, NotFound, WeightsRefused):
            continue
        parts = {name.removesuffix(f".{A}"): tensor.shape[0] for name, tensor in tensors.items() if name.endswith(A)}
        wanted = base = model.partition("+")[0]
        if adapter is not None:
            targets = tuple(sorted(adapter.targets or {name.rpartition(".")[2] for name in parts}))
            wanted = AdapterConfig(rank=adapter.rank, alpha=adapter.alpha, targets=targets, base_root=base).identity
        if model != wanted:
            held = f"an adapter of rank {max(parts.values())}" if parts else "the whole model"
            raise InvalidSettings(
                f"[training] adapter: {checkpoints} has {held}, and another was chosen: what is trained, rank, alpha and targets stay the "
                "same within a run; put it back, or choose another --home"
            )
        return


def _load_base(settings: Settings, inspect: Callable[[Path], CheckpointReport] | None) -> Tensors:
    base = Path(settings.base)
    if not base.is_dir():
        raise InvalidSettings(f"policy folder {base} does not exist")
    published_as = {} if inspect is None else inspect(base).published_as
    load_template(settings.base)
    tensors = {published_as.get(name, name): tensor for name, tensor in read_safetensors(base).items()}
    tensors.pop("", None)
    return to_bf16(tensors)


def _check_redis(settings: Settings) -> None:
    """Raises InvalidSettings if Redis is there and refuses. A home also runs without it, so later nobody would notice."""
    if settings.redis is None:
        return
    from runtime.replicas.redis_connection import redis_refusal  # noqa: PLC0415 embedded need not load the client

    try:
        refusal = redis_refusal(settings.redis)
    except ValueError as error:
        refusal = f"{error}; write redis://host:port/0"
    if refusal:
        raise InvalidSettings(f"[millrace] redis: {refusal}")


def _check_log(database: Database, settings: Settings) -> None:
    """Check that the log is the database's own, create its topics, and report damaged records.

    The readers of damaged records turn each into a dead letter later; nothing else is lost.
    """
    with closing(settings.event_log()) as log:
        require_same_log(database, log, settings.home)
        log.create_topics()
        note(database, log.describe(), time.time())
        if settings.kafka is not None:
            return
        with database.snapshot() as connection:
            positions = read_positions(connection)
        for record in damaged_records(log, positions):
            print(
                f"{record.topic}/{record.partition} {record.offset} is damaged: the disk changed its bits. It will become a dead letter; "
                "check the disk",
                flush=True,
            )


def _make_secrets(database: Database, home: Path) -> str | None:
    """Make the keys that are missing. Returns the app key if it is new."""
    app_key, given = None, os.environ.get(APP_KEY, "").strip()
    with database.transaction() as connection:
        is_first = not has_keys(connection)
        if given:
            register_key(connection, given, "app", APP_KEY)
        elif is_first:
            app_key = create_key(connection, "app")
        if operator := given_operator_key():
            register_key(connection, operator, "operator", OPERATOR_KEY)
        elif is_first:
            write_durably(operator_file(home), [f"{create_key(connection, 'operator')}\n".encode()], mode=0o600)
    if not is_given():
        engine_key(home)
    return app_key


def _base_root(store: WeightStore, policy: str) -> str | None:
    """The root hash of version 0. None: it was never published."""
    try:
        return store.manifest(policy, 0).target_root
    except NotFound:
        return None


def _check_database(database: Database, settings: Settings, versions: list[int]) -> None:
    """Raises InvalidSettings if database, home and weight store belong to different runs."""
    policy, file, given = settings.policy, operator_file(settings.home), given_operator_key()
    with database.snapshot() as connection:
        known, arms = has_keys(connection), assignments.read(connection, policy)
        if known and not given and file.exists():
            _check_operator(connection, file)
    if known and not given and not file.exists():
        another = f"the database holds the keys of another home, and {file} does not exist: restore millrace.toml and operator.key"
        raise InvalidSettings(f"{another} of that home, or give this one a database of its own")
    live = arms[LIVE].version if LIVE in arms else None
    if live is not None and live not in versions:
        held = f"the weight store ({settings.weights_url or settings.weights}) has {versions or 'none'}"
        raise InvalidSettings(
            f"{policy} serves version {live}, and {held}: restore it, or start over with another database and --home"
        )


def _check_operator(connection: Connection, file: Path) -> None:
    try:
        check_key(connection, f"Bearer {file.read_text().strip()}").require_operator()
    except (Forbidden, Unauthorized, ValueError) as error:  # ValueError: it is not text
        raise InvalidSettings(
            f"{file} does not hold an operator key that this database knows: it was changed, or belongs to another home. Restore it, "
            f"or make a new one: millrace keys --role operator --home {file.parent} > {file}"
        ) from error


def _continued(settings: Settings, held: Settings) -> Settings:
    """Settings for a home that was started before. Its checkpoints and log belong to one run of one policy."""
    if settings.policy != held.policy:
        raise InvalidSettings(
            f"{held.home} holds the policy {held.policy!r}, not {settings.policy!r}; choose another --home"
        )
    if held.base and not settings.base:
        raise InvalidSettings(
            f"{held.home} has a policy of its own, {held.base}: give it with --policy, or choose another --home for a provider alone"
        )
    if "partitions" in settings.model_fields_set and settings.partitions != held.partitions:
        raise InvalidSettings(
            f"{held.home} has {held.partitions} partitions, not {settings.partitions}, and this number can never change, because records "
            "that belong together meet by it: leave partitions as it is, or choose another --home"
        )
    servers = ("database_url", "kafka", "redis", "weights_url")
    kept = {name: getattr(settings, name) or getattr(held, name) for name in servers}
    kept |= {name: getattr(held, name) for name in _KEPT if name not in settings.model_fields_set}
    return make_section("[millrace]", Settings, **{**settings.model_dump(), **kept, "run": held.run})


_KEPT = (
    *(name for name in KafkaSettings.model_fields if name != "kafka"),
    *("feedback_origins", "partitions", "requests_per_minute", "signals_per_minute", "weights_unsigned"),
)
"""What an operator may have written into the file stays, unless an option says otherwise."""
