"""Runs one process in this interpreter: the other end of the supervisor.

Status 0: told to stop. Status 2: settings or a task file are wrong, or files and log are not what they were: a person has to
look. Anything else: a fault, worth another start.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import structlog

from commands.supervisor import WRONG_SETTINGS
from contracts.errors import Damaged, InvalidSettings, InvalidTask, LogLost, PositionLost, Unavailable
from runtime.clocks import ClockWatch
from runtime.log.loss_detection import require_same_log
from runtime.logs import set_up_logs
from runtime.operations import LONGEST_STEP_SECONDS, LONGEST_WORK_SECONDS, Check, Operations
from runtime.passwords import check_passwords
from runtime.private_files import create_private_files
from runtime.settings import load_settings

_SERVERS = {"engine", "web", "inference", "feedback", "dashboard"}  # uvicorn handles the signals of these itself
# One turn takes a training step, puts all sentinels to a candidate, or waits for judges and sandboxes.
_LONG_WORKERS = {"training", "release", "rewards"}
_LONGEST_END_SECONDS = 30.0
# Nobody adds to a log, or reads on in one, that is not the log of the database. The engine knows neither; the dashboard shows it.
_ON_THE_LOG = {"web", "inference", "feedback", "episodes", "rewards", "training"}
log = structlog.get_logger()
PROCESSES = {
    "engine": "services.engine.__main__",
    "web": "services.web",
    "inference": "services.inference.__main__",
    "feedback": "services.feedback.__main__",
    "dashboard": "services.dashboard.__main__",
    "episodes": "pipelines.episodes.__main__",
    "rewards": "rewards.__main__",
    "training": "pipelines.training.__main__",
    "release": "commands.release",
}


def run_process(name: str, home: Path, *, supervised: bool, **options: str) -> None:
    """Import one process, and only that one, and run it until SIGTERM, SIGINT or the end of its supervisor.

    `options`: what else its `main` takes.
    """
    create_private_files()
    set_up_logs(name)
    stop = threading.Event()
    if supervised:
        threading.Thread(target=_follow_supervisor, daemon=True).start()
    try:
        # A process that is still importing has nothing to finish: a signal ends it at once.
        module = importlib.import_module(PROCESSES[name])
        check_passwords(load_settings(home), os.environ)
        if name in _ON_THE_LOG:
            _check_log(home)
        if name in _SERVERS:
            module.main(home)
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: stop.set())
            longest = LONGEST_WORK_SECONDS if name in _LONG_WORKERS else LONGEST_STEP_SECONDS
            clock = ClockWatch(load_settings(home).database())
            checks = {"database": _database_check(home), "clock": clock.check}
            operations = Operations(checks, longest_step_seconds=longest)
            module.main(home, stop, **options)
            operations.close()
    except (InvalidSettings, InvalidTask, LogLost, PositionLost, Damaged) as error:
        print(error.message, flush=True)
        sys.exit(WRONG_SETTINGS)


def _check_log(home: Path) -> None:
    """Raises LogLost, PositionLost or Damaged. What is away now is no worker's fault, and cannot be compared."""
    settings = load_settings(home)
    database, event_log = settings.database(), settings.event_log()
    try:
        require_same_log(database, event_log, home)
    except Damaged:
        raise
    except Unavailable as error:
        log.warning("log not compared with the database", reason=error.message)
    finally:
        event_log.close()
        database.close()


def _database_check(home: Path) -> Check:
    database = load_settings(home).database()

    def check() -> None:
        with database.snapshot():
            pass

    return check


def _follow_supervisor() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_LONGEST_END_SECONDS)
    os._exit(1)  # nobody is left to kill what hangs
