"""docker-compose.yml as it is, under podman-compose, on imitations of its base images: see deploy/containers.

In: the images that `deploy/containers build` made. Out: a table, results/<date>-containers.json, and an exit status. The simulated
users of the reservations example work through the published ports meanwhile. Each container is killed once; at the end no
generation and no signal of the users may be unexplained, and every process must end with status 0 when it is told to.

    deploy/containers alone python -m tests.adversary.containers        `make containers` builds first
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.report import write_report
from tests.adversary.containers.engine import (
    FOLDER,
    PROJECT,
    call,
    containers,
    end,
    is_healthy,
    kill,
    podman,
    state,
    wait_until,
)
from tests.worlds.paths import ROOT

HOME = "/var/lib/millrace"
SERVERS = ("kafka", "postgres", "redis", "s3")
_ENDS = ("training", "release", "rewards", "episodes", "dashboard", "feedback", "inference", "engine", *SERVERS)
"""Clients before the servers that answer them. The object store is in memory, so it is killed last."""
_START_SECONDS, _BACK_SECONDS, _DRAIN_SECONDS = 300.0, 180.0, 300.0
_LARGEST_MB = 500
_CODE = {
    "prompt": "Write f that doubles a number.",
    "completion": "```python\ndef f(x):\n    return 2 * x\n```",
    "reference": {"function": "f", "tests": [[[1], 2], [[4], 8]]},
}
console = Console()


def start() -> str:
    """Write .env, start everything, wait for health. Returns the app's key."""
    (PROJECT / ".env").unlink(missing_ok=True)
    subprocess.run([PROJECT / "deploy" / "env"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 our own script
    # Podman 4.3, of Debian 12, can neither wait for health nor start what depends on what depends on something: so in three steps.
    _up(*SERVERS)
    for name in SERVERS:
        _wait_healthy(f"millrace_{name}_1")
    _up("init")
    wait_until("init has ended", lambda: not state("millrace_init_1")["Running"], _START_SECONDS)
    if (status := state("millrace_init_1")["ExitCode"]) != 0:
        raise RuntimeError(f"init failed with status {status}")
    _up(*(name for name in call("compose", "config", "--services").stdout.split() if name not in {*SERVERS, "init"}))
    for name in _ours():
        _wait_healthy(name)
    [key] = set(re.findall(r"app key +(\S+)", podman("logs", "millrace_init_1")))
    return str(key)


def observe() -> dict[str, Any]:
    """Start Prometheus, which is optional, and wait until it has found every process by its name; what it reads and which rules it has."""
    call("compose", "--profile", "observe", "up", "--detach", "--no-build", "--no-deps", "prometheus")
    _wait_healthy("millrace_prometheus_1")
    processes = {_service(name) for name in _ours()} - {"prometheus"}

    def read(what: str) -> Any:
        return httpx.get(f"http://127.0.0.1:9090/api/v1/{what}", timeout=10.0).raise_for_status().json()["data"]

    def found() -> Counter[str]:
        return Counter(one["labels"]["process"] for one in read("targets")["activeTargets"] if one["health"] == "up")

    wait_until("Prometheus reads every process", lambda: processes <= found().keys(), _BACK_SECONDS)
    rules = [rule for group in read("rules")["groups"] for rule in group["rules"]]
    return {
        "read": dict(found()),
        "num_rules": len(rules),
        "unreadable_rules": [rule["name"] for rule in rules if rule["health"] == "err"],
    }


def _up(*services: str) -> None:
    call("compose", "up", "--detach", "--no-build", "--no-deps", *services)


def _wait_healthy(name: str) -> None:
    console.print(
        f"{name} is healthy after {wait_until(f'{name} is healthy', lambda: is_healthy(name), _START_SECONDS):.0f} s"
    )


def _ours() -> list[str]:
    return [name for name in containers() if _service(name) not in {*SERVERS, "init"}]


def _service(container: str) -> str:
    """`millrace_inference-2_1` is a replica of inference."""
    return container.split("_")[1].partition("-")[0]


def users(key: str, listed: Path) -> list[subprocess.Popen[bytes]]:
    """Two crowds, at both replicas of inference and feedback, from outside the containers. They work until they are told to end."""
    crowds = []
    for number, (inference, feedback) in enumerate(((8400, 8410), (8401, 8411))):
        addresses = ["--url", f"http://127.0.0.1:{inference}", "--feedback-url", f"http://127.0.0.1:{feedback}"]
        habits = ["--seed", str(number + 1), "--seconds", "100000", "--users", "3", "--pace", "2"]
        out = listed.with_name(f"users-{number}.jsonl")
        out.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "examples.reservations.users",
            *addresses,
            *habits,
            "--key",
            key,
            "--out",
            str(out),
        ]
        crowds.append(subprocess.Popen(command, cwd=ROOT))  # noqa: S603 our own module
    return crowds


def audited(listed: Path) -> tuple[bool, str]:
    """Is every generation and signal explained, and nothing pending? With the words of `millrace audit`."""
    parts = sorted(listed.parent.glob("users-*.jsonl"))
    listed.write_text("".join(part.read_text() for part in parts))
    podman("cp", str(listed), f"millrace_dashboard_1:{HOME}/users.jsonl")
    done = call(
        "podman", "exec", "millrace_dashboard_1", "millrace", "audit", "--home", HOME, "--clients", f"{HOME}/users.jsonl", "--settled",
        check=False,
    )  # fmt: skip
    return done.returncode == 0, done.stdout + done.stderr


def sandbox() -> dict[str, str]:
    """What the sandboxes say inside the image, and what the verifier `code` says about one right answer."""
    said = podman("exec", "millrace_rewards_1", "millrace", "doctor", "--home", HOME, check=False)
    [line] = [line for line in said.splitlines() if " sandbox " in line]
    podman("exec", "--interactive", "millrace_rewards_1", "sh", "-c", f"cat > {HOME}/code.json", given=b"{}")
    graded = podman(
        "exec", "--interactive", "millrace_rewards_1", "millrace", "score", "--verifier", "code", "--config", f"{HOME}/code.json",
        check=False, given=json.dumps(_CODE).encode() + b"\n",
    )  # fmt: skip
    return {"doctor": line, "code": graded.strip()}


def another_release() -> str:
    """What a process of another release says beside this one: the same image, without the newest change of the schema."""
    versions = "/opt/millrace/lib/python3.11/site-packages/migrations/versions"
    text = f"FROM localhost/millrace:local\nUSER root\nRUN rm $(ls {versions}/2*.py | tail -n 1)\nUSER millrace\n"
    podman("build", "--isolation", "chroot", "--tag", "localhost/millrace:older", "-", given=text.encode())
    try:
        mounts = [f"millrace_home:{HOME}", f"{PROJECT / 'examples'}:/products:ro"]
        options = ["--network", "millrace_default", *(f"--volume={mount}" for mount in mounts)]
        done = call(
            "podman", "run", "--rm", *options, "localhost/millrace:older", "feedback", "--home", HOME, check=False
        )
    finally:
        podman("rmi", "localhost/millrace:older", check=False)
    return f"status {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"


def images() -> dict[str, float]:
    """Megabytes (10^6 bytes) of both images, unpacked: Size of `podman image inspect`."""
    return {
        name: int(podman("image", "inspect", f"localhost/{name}:local", "--format", "{{.Size}}")) / 1e6
        for name in ("millrace", "millrace-torch")
    }


class ContainerKill(NamedTuple):
    """A container that was killed."""

    container: str
    at: float
    """Seconds since 1970."""
    seconds: float | None
    """Until it was healthy again; None: it was not, for as long as we waited."""


def _kill(name: str) -> ContainerKill:
    at = time.time()
    try:
        seconds = round(kill(name, _BACK_SECONDS), 1)
    except TimeoutError as error:
        console.print(f"{name} was killed: {error}", style="red")
        return ContainerKill(name, at, None)
    console.print(f"{name} was killed, and is healthy again after {seconds:.0f} s")
    return ContainerKill(name, at, seconds)


def failures(notes: Sequence[dict[str, Any]], kills: Sequence[ContainerKill]) -> dict[str, int]:
    """Requests that failed after all tries of their client: how many, by the container killed last before and by the error."""
    found = Counter[str]()
    for note in notes:
        killed = [one.container for one in kills if one.at < note["at"]]
        found[f"{killed[-1] if killed else 'before any kill'}: {note['what'][:70]}"] += 1
    return dict(sorted(found.items()))


def run() -> dict[str, Any]:
    """The whole run; returns its figures."""
    started = time.monotonic()
    listed = FOLDER / "users.jsonl"
    key = start()
    figures: dict[str, Any] = {"images_mb": images(), "sandbox": sandbox(), "another_release": another_release()}
    figures["prometheus"] = observe()
    figures["seconds_until_all_started"] = round(time.monotonic() - started)
    crowds = users(key, listed)
    try:
        # The object store is in memory: without it the versions are gone. So it is killed after the audit.
        kills = [_kill(name) for name in [*_ours(), *(f"millrace_{name}_1" for name in SERVERS if name != "s3")]]
        time.sleep(10)  # the last one to come back serves for a while
    finally:
        for crowd in crowds:
            crowd.terminate()
            crowd.wait()
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not (result := audited(listed))[0] and time.monotonic() < deadline:
        time.sleep(5)
    notes = [json.loads(line) for line in listed.read_text().splitlines()]
    kinds = [note["kind"] for note in notes]
    figures["requests_that_failed"] = failures([note for note in notes if note["kind"] == "failed"], kills)
    kills.append(_kill("millrace_s3_1"))
    names = sorted(containers(), key=lambda name: _ENDS.index(_service(name)) if _service(name) in _ENDS else -1)
    ends = {name: end(name) for name in names if _service(name) != "init"}
    return figures | {
        "users": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "balanced": result[0],
        "audit": result[1].splitlines(),
        "seconds_until_healthy_after_a_kill": {one.container: one.seconds for one in kills},
        "restarts": {name: state(name)["Restarts"] for name in names},
        "ends": {name: {"status": status, "seconds": round(seconds, 1)} for name, (status, seconds) in ends.items()},
    }


def show(figures: dict[str, Any]) -> bool:
    """Print the table. Returns whether all is as it should be."""
    table = Table("container", "back after a kill", "status at its end", "seconds to end")
    for name, seconds in figures["seconds_until_healthy_after_a_kill"].items():
        ended = figures["ends"][name]
        table.add_row(
            name, "NO" if seconds is None else f"{seconds:.1f} s", str(ended["status"]), f"{ended['seconds']:.1f}"
        )
    console.print(table)
    console.print("\n".join(figures["audit"]))
    wrong = {
        "a container was not healthy after its kill": None in figures["seconds_until_healthy_after_a_kill"].values(),
        "the ledger": not figures["balanced"],
        "the size of the image without torch": figures["images_mb"]["millrace"] > _LARGEST_MB,
        "a process did not end with 0": any(
            ended["status"] != 0 for name, ended in figures["ends"].items() if _service(name) not in SERVERS
        ),
        "another release was not refused": "status 2" not in figures["another_release"],
        "Prometheus": bool(figures["prometheus"]["unreadable_rules"]) or not figures["prometheus"]["num_rules"],
        "the sandbox": '"value": 1.0' not in figures["sandbox"]["code"],
    }
    for name in ("images_mb", "prometheus", "users", "requests_that_failed", "sandbox", "another_release"):
        console.print(f"{name}: {figures[name]}")
    for name in (name for name, is_wrong in wrong.items() if is_wrong):
        console.print(f"WRONG: {name}", style="red")
    return not any(wrong.values())


def main() -> int:
    """Returns the exit status."""
    argparse.ArgumentParser(
        prog="python -m tests.adversary.containers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    started = time.monotonic()
    try:
        figures = run()
    except Exception:  # whatever ends the run, the logs say why; they go with the containers
        for name in containers():
            console.print(f"── {name}: {state(name)['Status']}\n{podman('logs', '--tail', '12', name, check=False)}")
        raise
    finally:
        call("compose", "--profile", "observe", "down", "--volumes", "--timeout", "5", check=False)
    is_good = show(figures)
    write_report("containers", figures | {"seconds": round(time.monotonic() - started)})
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
