"""What a killed run of tests started does not live on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

_RUN = """
import os, subprocess, sys, time
from tests.leftovers import end_with_this_process

end = end_with_this_process()
server = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(server.pid, flush=True)
if sys.argv[1] == "ends":
    end()
else:
    time.sleep(60)
"""
_ROOT = Path(__file__).parent.parent.parent


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize(("how", "is_left"), [("is killed", False), ("ends", True)])
def test_a_server_in_a_session_of_its_own_ends_with_the_run_that_was_killed(how: str, is_left: bool) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT)}
    with subprocess.Popen([sys.executable, "-c", _RUN, how], env=environment, stdout=subprocess.PIPE, text=True) as run:  # noqa: S603
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        if how == "is killed":
            run.send_signal(signal.SIGKILL)
        run.wait()
    if is_left:
        assert server.is_running()
        server.kill()
    else:
        deadline = time.monotonic() + 60
        while server.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.is_running()
