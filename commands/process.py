"""Runs one process of a home in this interpreter. The supervisor starts it as a child; containers run it directly.

Exit status 0: it was told to stop. 2: settings or a task file are wrong, or files or log changed, so a person has to look.
Anything else: a fault, worth another start.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import structlog
import typer

from commands.options import DEFAULT_HOME, HomeOption
from commands.supervisor import SERVERS, WRONG_SETTINGS
from contracts.errors import Damaged, InvalidSettings, InvalidTask, LogLost, LogRefused, PositionLost, Unavailable
from engines.registry import FOLLOWED, check_section_names, followed_of
from runtime import schema
from runtime.clocks import ClockWatch
from runtime.database import Database
from runtime.disks import watch_disks
from runtime.heartbeat import Heartbeat, end_heartbeats
from runtime.log.loss_detection import require_same_log
from runtime.logs import set_up_logs
from runtime.operations import LONGEST_STEP_SECONDS, LONGEST_WORK_SECONDS, Check, Operations
from runtime.passwords import check_passwords
from runtime.settings import Settings, load_settings, read_home_settings
from runtime.settings_file import settings_file
from services.provider import load_provider

# One turn of these takes a training step, gives a candidate all sentinels, or waits for judges and sandboxes.
_LONG_WORKERS = {"training", "release", "rewards", *FOLLOWED}
_LONGEST_END_SECONDS = 30.0
_OF_WEIGHTS = {"engine", "training", "release", *FOLLOWED}
# These append to the log or read on in it, so it must be the database's own log. The engine does neither; the dashboard shows it;
# release may skip records, see `runtime/worker.py`.
_ON_THE_LOG = {"web", "inference", "feedback", "episodes", "rewards", "training"}
log = structlog.get_logger()
PROCESSES = {
    "engine": "services.engine.__main__",
    "web": "services.web",
    "inference": "services.inference.__main__",
    "feedback": "services.feedback.__main__",
    "dashboard": "services.dashboard.__main__",
    "episodes": "commands.episodes",
    "rewards": "rewards.__main__",
    "training": "pipelines.training.__main__",
    "release": "commands.release",
}
SupervisedOption = Annotated[bool, typer.Option("--supervised", help="End when standard input closes.")]


def process(context: typer.Context, home: HomeOption = DEFAULT_HOME, *, supervised: SupervisedOption = False) -> None:
    """Run this process in the foreground."""
    run_process(str(context.info_name), home, supervised=supervised)


def run_process(name: str, home: Path, *, supervised: bool, **options: str) -> None:
    """Import only this process, and run it until SIGTERM, SIGINT or, if `supervised`, until standard input closes.

    `name`: a key of `PROCESSES`, or one of `FOLLOWED`. `options`: further arguments of its `main`.
    """
    set_up_logs(name)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # During the import and the checks there is nothing to finish. An exception could be caught by what is being imported.
        signal.signal(number, lambda *_: os._exit(0))
    if supervised:
        threading.Thread(target=follow_supervisor, daemon=True).start()
    try:
        module = importlib.import_module(PROCESSES.get(name) or followed_of(name).process)
        settings = load_settings(home)
        check_passwords(settings, os.environ)
        check_section_names(read_home_settings(home) or (), str(settings_file(home)))
        _check_has_weights(name, settings)
        check_release(home)
        if name in _ON_THE_LOG:
            _check_log(home, may_wait=name in SERVERS)
        longest = LONGEST_WORK_SECONDS if name in _LONG_WORKERS else LONGEST_STEP_SECONDS
        Heartbeat(settings.database(), settings.policy, name, longest)
        watch_disks({"home": home, "checkpoints": settings.checkpoints, "weights": settings.weights})
        if name in SERVERS:  # they handle the signals themselves, see services/serving.py
            module.main(home)
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            clock = ClockWatch(settings.database())
            checks = {"database": _database_check(settings.database()), "clock": clock.check}
            operations = Operations(checks, longest_step_seconds=longest)
            module.main(home, stop, **options)
            operations.close()
        end_heartbeats()
    except (InvalidSettings, InvalidTask, LogLost, PositionLost, Damaged) as error:
        print(error.message, flush=True)
        sys.exit(WRONG_SETTINGS)


def check_release(home: Path) -> None:
    """Raises InvalidSettings if the database has another release's schema. One that cannot be reached now is no reason to refuse."""
    try:
        with load_settings(home).snapshot() as connection:
            schema.require_same(connection)
    except Damaged:
        raise
    except Unavailable as error:
        log.warning("schema not compared with this release's", reason=error.message)


def _check_has_weights(name: str, settings: Settings) -> None:
    """Raises InvalidSettings: the process is about versions, and a provider answers in this home."""
    if name in _OF_WEIGHTS and not settings.base and (provider := load_provider(settings)) is not None:
        raise InvalidSettings(provider.says)


def _check_log(home: Path, *, may_wait: bool) -> None:
    """Raises LogLost, PositionLost, Damaged, InvalidSettings, or LogRefused unless `may_wait`.

    A log that cannot be reached now is not a reason to refuse the start. A server goes on without it: users are answered, and records wait.
    """
    settings = load_settings(home)
    with closing(settings.database()) as database, closing(settings.event_log()) as event_log:
        try:
            event_log.check_topics()
            require_same_log(database, event_log, home)
        except Damaged:
            raise
        except Unavailable as error:
            if isinstance(error, LogRefused) and not may_wait:
                raise
            log.warning("log not compared with the database", reason=error.message)


def _database_check(database: Database) -> Check:
    def check() -> None:
        with database.snapshot():
            pass

    return check


def follow_supervisor() -> None:
    """End with the process at the other end of standard input."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LONGEST_END_SECONDS)
    os._exit(1)  # the supervisor is gone, so nothing else can kill a process that hangs
