"""A home on a broker with TLS and a sign-in: made, checked, refused by name, as an operator sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.secret_values import KAFKA_PASSWORD
from runtime.settings import load_settings
from tests.command_line import Ran, run_here
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.servers.authority import Authority
from tests.worlds.servers.broker import PASSWORD, USER, TlsBroker
from tests.worlds.servers.services import new_prefix

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


def test_a_home_over_tls_is_made_looked_at_and_refused_by_name(
    broker: TlsBroker, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others ask for sandboxes, and look at a checkpoint with torch, in a process of its own.
    monkeypatch.setattr("commands.doctor.MAKERS", {})
    monkeypatch.setattr("commands.init.check_policy", None)
    home, secret, name = tmp_path / "home", tmp_path / "password", new_prefix().rstrip("-")
    secret.write_text(f"{PASSWORD}\n")
    monkeypatch.setenv(f"{KAFKA_PASSWORD}_FILE", str(secret))
    place = broker.places["LOGIN"]

    def init(*chosen: str) -> Ran:
        settings = [word for item in chosen for word in ("--set", item)]
        base, task = str(EXAMPLE / "base"), str(EXAMPLE / "task.toml")
        ours = ("--policy", base, "--task", task, "--home", str(home), "--name", name)
        return run_here("init", *ours, "--kafka", place, "--sentinels", str(EXAMPLE / "sentinels.jsonl"), *settings)

    tls = ("kafka_tls=true", f"kafka_ca={authority.file}")
    assert "hangs up without an answer" in init(*tls).stderr
    assert not (home / "millrace.toml").exists(), "nothing was made"
    login = ("kafka_mechanism=SCRAM-SHA-512", f"kafka_user={USER}")
    made = init("partitions=7", *tls, *login)
    assert made.returncode == 0, made.stderr
    written = (home / "millrace.toml").read_text()
    assert PASSWORD not in written
    assert init().returncode == 0, "what was chosen once stays"
    settings = load_settings(home)
    assert (settings.partitions, settings.kafka_user, settings.kafka_tls) == (7, USER, True)
    log = settings.event_log()
    assert {len(state.ends) for state in log.describe().values()} == {7}
    log.close()
    assert "has 7 partitions, not 8, and this number can never change" in init("partitions=8").stderr
    assert (home / "millrace.toml").read_text() == written, "a refusal changes nothing"

    looked = run_here("doctor", "--deep", "--home", str(home)).stdout
    assert f"Kafka at {place}: its certificate expires" in looked
    assert "ok       kafka        5 topics" in looked

    (home / "millrace.toml").write_text(written.replace("partitions = 7", "partitions = 9"))
    ended = start("episodes", home)
    assert (ended.returncode, "has 7 partitions, not 9" in ended.stdout) == (2, True), ended.stdout
    (home / "millrace.toml").write_text(written)
    secret.write_text("guess")
    ended = start("episodes", home)
    assert (ended.returncode, "refuses this sign-in" in ended.stdout + ended.stderr) == (1, True), ended.stdout


def start(process: str, home: Path) -> subprocess.CompletedProcess[str]:
    """A process that ends by itself."""
    return subprocess.run(  # noqa: S603 our own program
        [sys.executable, str(ROOT / "millrace.py"), process, "--home", str(home)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
