"""Servers and processes that tests started end with pytest, however it ends.

They carry the name of the run in their environment. A process beside pytest waits until pytest is gone, and kills who still has it;
pytest ends that process first when it ends by itself, because then its fixtures have ended what they started.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

_NAME = "MILLRACE_TEST_RUN"
_WAIT_AND_KILL = """
tail --pid="$1" --follow /dev/null 2>/dev/null || exit
for process in /proc/[0-9]*; do
  if grep --quiet --null-data --line-regexp "$2" "$process/environ" 2>/dev/null; then kill -KILL "${process#/proc/}"; fi
done
"""


def end_with_this_process() -> Callable[[], None]:
    """Watch over what this process will start; returns what ends the watch. Does nothing in a worker of xdist, and without /proc."""
    if _NAME in os.environ or not Path("/proc/self/environ").exists():
        return lambda: None
    unwatched = dict(os.environ)
    os.environ[_NAME] = run = f"{os.getpid()}-{os.urandom(4).hex()}"
    watch = subprocess.Popen(  # noqa: S603 the script above
        ["sh", "-c", _WAIT_AND_KILL, "sh", str(os.getpid()), f"{_NAME}={run}"],  # noqa: S607 whichever sh there is
        env=unwatched,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        os.killpg(watch.pid, 9)
        watch.wait()
        del os.environ[_NAME]

    return end
