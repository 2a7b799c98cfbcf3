"""docker-compose.yml and Dockerfile against deploy/services and the code: two descriptions of one wiring.

No container engine is asked: what is compared is what the files say.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from commands import policy_check, process, supervisor
from commands.options import Servers
from contracts.checkpoints import CheckpointReport
from contracts.event_log import NUM_PARTITIONS
from millrace import load
from runtime import settings as settings_module
from runtime.engine_key import ENGINE_KEY
from runtime.listening import BIND
from runtime.logs import LEVEL
from runtime.operations import OPERATIONS_ADDRESS
from services.serving import DRAIN_SECONDS
from tests.command_line import run_here
from tests.each_case import each_case
from tests.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent.parent
ALL: dict[str, dict[str, Any]] = read_yaml(ROOT / "docker-compose.yml")["services"]
# The second replica of a process with published ports is a service of its own.
SERVICES = {name: service for name, service in ALL.items() if not name.endswith("-2")}
SECONDS = {name.removesuffix("-2"): service for name, service in ALL.items() if name.endswith("-2")}
SCRIPT = (ROOT / "deploy" / "services").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STANDS_ON = {"kafka", "postgres", "redis", "s3"}
OBSERVERS = {"prometheus", "grafana"}
OURS = set(process.PROCESSES) - {"web"}
HOME = "/var/lib/millrace"


def plain(text: str) -> str:
    """A value of the file as it is where the environment says nothing but the passwords that `deploy/env` makes."""
    return re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", re.sub(r"\$\{(\w+):\?[^}]*\}", r"the-\1", text))


def words(name: str) -> list[str]:
    return shlex.split(plain(SERVICES[name]["command"]))


def function(name: str) -> str:
    """The body of a function of deploy/services."""
    found = re.search(rf"^{name}\(\).*?^}}", SCRIPT, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group()


def options(of: list[str]) -> dict[str, str]:
    """--name value pairs; what stands before the first is not one."""
    rest = [part for word in of for part in (word.split("=", 1) if word.startswith("--") else [word])]
    rest = rest[next(index for index, word in enumerate(rest) if word.startswith("-")) :]
    assert len(rest) % 2 == 0
    return dict(zip(rest[::2], rest[1::2], strict=True))


def image(name: str) -> tuple[str, str]:
    repository, _, tag = re.sub(r"\$.*", "", SERVICES[name]["image"]).partition(":")
    return repository, tag


def init_options() -> dict[str, str]:
    return options(words("init")[1:])


def test_every_process_is_a_service_and_every_service_is_known() -> None:
    assert set(SERVICES) == STANDS_ON | OURS | OBSERVERS | {"init"}
    assert {name for name in SERVICES if "profiles" in SERVICES[name]} == OBSERVERS


@each_case("name", sorted(OURS))
def test_a_service_runs_the_process_of_its_name(name: str) -> None:
    assert words(name) == [name, "--home", HOME, *(["--processes", "1"] if name == "training" else [])]


def test_replicas_are_those_of_the_profile_services() -> None:
    shared = Servers("kafka:9092", "postgresql+psycopg://millrace@postgres/millrace")
    declared = {name: SERVICES[name]["deploy"]["replicas"] + (name in SECONDS) for name in OURS}
    assert declared == {name: shared.replicas.get(name, 1) for name in OURS}


def test_a_second_replica_differs_in_its_port_alone_and_answers_to_the_same_name() -> None:
    for name, second in SECONDS.items():
        assert second["networks"] == {"default": {"aliases": [name]}}
        assert {**second, "ports": 0, "networks": 0} == {**SERVICES[name], "ports": 0, "networks": 0}
    several = {name for name in OURS if SERVICES[name]["deploy"]["replicas"] > 1}
    assert all(SERVICES[name]["deploy"]["mode"] == "replicated" for name in several)


@each_case("name", sorted(SERVICES))
def test_every_service_has_limits_and_a_way_to_end(name: str) -> None:
    service = SERVICES[name]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["restart"] == ("no" if name == "init" else "unless-stopped")
    assert int(service["stop_grace_period"].removesuffix("s")) > 0
    assert service["logging"]["options"]["max-size"]


@each_case("name", sorted(set(SERVICES) - {"init"}))
def test_every_service_that_stays_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= check.keys()


def test_ours_have_longer_to_end_than_they_take() -> None:
    for name in OURS:
        seconds = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert seconds > max(DRAIN_SECONDS, supervisor._GRACE_SECONDS, process._LONGEST_END_SECONDS)


@pytest.mark.slow
def test_the_health_check_asks_the_port_for_operators() -> None:
    [(_, python, option, code)] = {tuple(SERVICES[name]["healthcheck"]["test"]) for name in OURS}
    assert (python, option) == ("python", "-c")
    port = SERVICES["engine"]["environment"][OPERATIONS_ADDRESS].rpartition(":")[2]
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = free.getsockname()[1]
    check = [sys.executable, "-c", code.replace(f":{port}/", f":{here}/")]
    assert subprocess.run(check, check=False, capture_output=True).returncode == 1, "nobody is there"  # noqa: S603
    for longest, status in ((60.0, 0), (-1.0, 1)):
        process = (
            f"from runtime.operations import Operations; Operations(longest_step_seconds={longest}); "
            "print(flush=True); input()"
        )
        with subprocess.Popen(  # noqa: S603 our own code
            [sys.executable, "-c", process],
            cwd=ROOT,
            env=os.environ | {OPERATIONS_ADDRESS: f"127.0.0.1:{here}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as running:
            assert running.stdout is not None
            running.stdout.readline()
            assert subprocess.run(check, check=False, capture_output=True).returncode == status  # noqa: S603
            running.kill()


def test_ports_are_published_on_this_machine_only_and_one_for_each_replica() -> None:
    taken: list[int] = []
    for name, service in ALL.items():
        for published in service.get("ports", []):
            address, port, _ = published.split(":")
            assert address == "127.0.0.1"
            assert service["deploy"].get("replicas", 1) == 1, name
            taken.append(int(port))
    assert len(taken) == len(set(taken))


def test_published_ports_are_those_that_init_wrote_down() -> None:
    told = init_options()
    for name in ("inference", "engine", "feedback", "dashboard"):
        host, _, port = told[f"--{name}"].partition(":")
        assert host == name
        assert {published.rpartition(":")[2] for published in SERVICES[name].get("ports", [port])} == {port}
        assert port in exposed()


def exposed() -> list[str]:
    [line] = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    return str(line).split()


def test_dependencies_are_services_that_can_be_what_they_are_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, waits in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other == "init" else "service_healthy"
            assert waits["condition"] == expected, name
    assert set(SERVICES["init"]["depends_on"]) == STANDS_ON
    assert all("init" in SERVICES[name]["depends_on"] for name in OURS)


def test_one_home_for_all_of_ours_and_torch_where_it_is_needed() -> None:
    for name in OURS | {"init"}:
        needs_torch = name in {"engine", "training", "init"}  # `init` looks into the policy's folder with torch
        assert SERVICES[name]["image"] == ("millrace-torch" if needs_torch else "millrace") + ":${MILLRACE_TAG:-local}"
        assert SERVICES[name]["build"]["target"] == ("torch" if needs_torch else "slim")
        assert f"home:{HOME}" in SERVICES[name]["volumes"]
        assert SERVICES[name]["environment"] == SERVICES["init"]["environment"]
    assert HOME in DOCKERFILE


def test_variables_of_the_environment_are_read_by_the_code() -> None:
    names = set(SERVICES["init"]["environment"])
    assert {name for name in names if name.startswith("MILLRACE_")} == {BIND, OPERATIONS_ADDRESS, LEVEL, ENGINE_KEY}
    handed_to_tests = set(re.findall(r"\b(AWS_\w+)=", SCRIPT))
    assert {name for name in names if name.startswith("AWS_")} == handed_to_tests


def test_init_is_called_as_the_command_line_has_it() -> None:
    told = init_options()
    names = {option for parameter in load("init").params for option in parameter.opts}
    assert told.keys() <= names
    assert told["--home"] == HOME
    assert told["--kafka"] == SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].partition("://")[2]
    assert told["--redis"] == "redis://:the-REDIS_PASSWORD@redis:6379/0"
    postgres = {key: plain(value) for key, value in SERVICES["postgres"]["environment"].items()}
    login = f"{postgres['POSTGRES_USER']}:{postgres['POSTGRES_PASSWORD']}"
    assert told["--database"] == f"postgresql+psycopg://{login}@postgres/{postgres['POSTGRES_DB']}"


@pytest.mark.slow
def test_init_makes_a_home_of_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as it is mounted, and the options but for the servers.

    That the packages, which the image gets whole, are enough for `init` is in `tests/unit/commands/test_wheel.py`.
    """
    mounted = plain(SERVICES["init"]["volumes"][1]).split(":")
    assert mounted[1:] == ["/products", "ro"]
    replaced = {HOME: str(tmp_path / "home"), "/products": str(ROOT / mounted[0])}
    arguments = []
    for option, value in init_options().items():
        if option in {"--kafka", "--database", "--redis", "--weights"}:
            continue
        for there, here in replaced.items():
            value = value.replace(there, here)  # noqa: PLW2901 a path of the container becomes one of here
        arguments += [option, value]
    monkeypatch.setattr(policy_check, "inspect_policy", lambda _: CheckpointReport())  # a process that loads torch
    done = run_here("init", *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    made = settings_module.load_settings(tmp_path / "home")
    assert made.policy == "reservations"
    assert (made.engine_url, made.web_url) == ("http://engine:8401", "http://inference:8400")
    assert (made.feedback_url, made.dashboard_url) == ("http://feedback:8402", "http://dashboard:8403")
    assert made.is_split


def copied() -> list[tuple[str, str]]:
    pairs = []
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        pairs += [(source, source if target == "./" else target) for source in sources]
    return pairs


def test_the_image_gets_what_the_package_consists_of() -> None:
    project, packages = PROJECT["project"], PROJECT["tool"]["setuptools"]
    needed = {name.removesuffix("*") for name in packages["packages"]["find"]["include"]}
    needed |= {f"{module}.py" for module in packages["py-modules"]} | {project["readme"], "pyproject.toml"}
    assert {source for source, _ in copied()} == needed | {"deploy/requirements", "deploy/packages.py"}
    installs = re.findall(r"pip\S* (?:--python \S+ )?install (?:[^&]|\n)*", DOCKERFILE)
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_the_image_is_told_of_nothing_else() -> None:
    *rules, _, _ = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules[1:]} == {source for source, _ in copied()}
    assert not any(fnmatch.fnmatch("operator.key", rule.removeprefix("!")) for rule in rules[1:])


def test_the_image_has_the_python_of_the_project_and_no_root() -> None:
    [version] = re.findall(r"^FROM python:(\d+\.\d+)-", DOCKERFILE, re.MULTILINE)
    [digest] = re.findall(r"^ARG PYTHON_DIGEST=(@sha256:[0-9a-f]{64})$", DOCKERFILE, re.MULTILINE)
    assert SERVICES["engine"]["build"]["args"]["PYTHON_DIGEST"] == f"${{PYTHON_DIGEST-{digest}}}"
    assert PROJECT["project"]["requires-python"] == f">={version}"
    for stage in ("slim", "torch"):
        body = DOCKERFILE.partition(f" AS {stage}\n")[2].partition("\nFROM ")[0]
        assert re.findall(r"^USER (.*)$", body, re.MULTILINE)[-1] == "millrace"
    assert 'ENTRYPOINT ["tini", "--", "millrace"]' in DOCKERFILE


def test_kafka_is_the_same_version() -> None:
    name = {"m": "http://maven.apache.org/POM/4.0.0"}
    pom = ET.parse(ROOT / "deploy" / "kafka" / "pom.xml")  # noqa: S314 our own file
    versions = {
        found.findtext("m:artifactId", namespaces=name): found.findtext("m:version", namespaces=name)
        for found in pom.iterfind(".//m:dependency", name)
    }
    assert image("kafka") == ("apache/kafka", versions["kafka_2.13"])


def test_kafka_has_the_same_settings() -> None:
    lines = (ROOT / "deploy" / "kafka" / "server.properties").read_text().splitlines()
    there = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    here = {
        name.removeprefix("KAFKA_").lower().replace("_", "."): str(value)
        for name, value in SERVICES["kafka"]["environment"].items()
        if name != "KAFKA_HEAP_OPTS"
    }
    of_the_place = {"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
    assert here.keys() == there.keys()
    assert {key: here[key] for key in here.keys() - of_the_place} == {
        key: there[key] for key in there.keys() - of_the_place
    }
    for key in ("listeners", "advertised.listeners"):
        assert re.findall(r"(\w+)://", here[key]) == re.findall(r"(\w+)://", there[key])
    for option in SERVICES["kafka"]["environment"]["KAFKA_HEAP_OPTS"].split():
        assert option in function("start_kafka")


def test_images_of_others_are_pinned_where_a_digest_is_known() -> None:
    for name in STANDS_ON | OBSERVERS:
        variable = "MOTO" if name == "s3" else name.upper()
        digest = re.fullmatch(rf"[^$]+\$\{{{variable}_DIGEST-(@sha256:[0-9a-f]{{64}})?\}}", SERVICES[name]["image"])
        assert digest is not None, name
        assert (digest[1] is None) == (name in {"redis", "s3"}), "the two that docs/operating.md names"


def test_only_init_makes_topics() -> None:
    properties = (ROOT / "deploy" / "kafka" / "server.properties").read_text()
    assert "auto.create.topics.enable=false" in properties
    assert SERVICES["kafka"]["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert SERVICES["kafka"]["environment"]["KAFKA_NUM_PARTITIONS"] == NUM_PARTITIONS
    sources = [path for folder in ("services", "pipelines", "rewards") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in sources if ".create_topics(" in path.read_text()] == []
    assert ".create_topics(" in (ROOT / "commands" / "home.py").read_text()


def test_postgres_has_the_same_flags() -> None:
    body = function("start_postgres")
    [told] = re.findall(r'--options "([^"]*)"', body)
    flags = dict(re.findall(r"-c (\w+)=(\S+)", told))
    assert flags.pop("listen_addresses") == "127.0.0.1"
    assert dict(re.findall(r"-c (\w+)=(\S+)", plain(SERVICES["postgres"]["command"]))) == flags
    environment = SERVICES["postgres"]["environment"]
    assert environment["POSTGRES_INITDB_ARGS"] in body
    assert f"--username {environment['POSTGRES_USER']} " in body
    assert f"-U millrace {environment['POSTGRES_DB']}" in function("start")


def test_redis_has_the_same_flags() -> None:
    started = function("start_redis").replace("\\\n", " ")
    [line] = re.findall(r"redis-server (--.*?) >", started)
    there = options(shlex.split(line))
    of_the_place = {"--bind", "--port", "--dir"}
    here = options(words("redis"))
    assert here.pop("--requirepass") == "the-REDIS_PASSWORD"
    assert here == {name: value for name, value in there.items() if name not in of_the_place}


def test_the_object_store_is_the_same_version_and_has_the_bucket() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert image("s3") == ("motoserver/moto", pins["moto"])
    [place] = re.findall(r"MILLRACE_WEIGHTS=(\S+)", SCRIPT)
    assert init_options()["--weights"] == place
    bucket = place.removeprefix("s3://").partition("/")[0]
    assert f's3/serve.py" "$S3_PORT" {bucket} ' in function("start_s3")
    assert f":5000/{bucket}', method='PUT'" in SERVICES["s3"]["healthcheck"]["test"][-1]
    assert SERVICES["init"]["environment"]["AWS_ENDPOINT_URL"] == "${AWS_ENDPOINT_URL-http://s3:5000}"


def test_both_start_the_same_servers() -> None:
    [names] = re.findall(r"^names=\((.*)\)$", SCRIPT, re.MULTILINE)
    assert set(names.split()) == STANDS_ON


def test_no_secret_has_a_default_and_one_command_writes_them_all(tmp_path: Path) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    kind = r"\w*(?:PASSWORD|SECRET|KEY)\w*"
    assert not re.findall(rf"\$\{{{kind}:?-", text)
    wanted = set(re.findall(rf"\$\{{({kind}):\?run deploy/env first\}}", text))
    script = tmp_path / "deploy" / "env"
    script.parent.mkdir()
    shutil.copy(ROOT / "deploy" / "env", script)
    subprocess.run([script], check=True, capture_output=True)  # noqa: S603 our own script
    file = tmp_path / ".env"
    written = dict(line.split("=") for line in file.read_text().split())
    assert wanted <= written.keys()
    assert len(set(written.values())) == len(written)
    assert all(len(value) >= 48 for value in written.values())
    assert file.stat().st_mode & 0o777 == 0o600
    again = subprocess.run([script], check=False, capture_output=True, text=True)  # noqa: S603 our own script
    assert again.returncode == 1
    assert "in use" in again.stderr
    assert file.read_text().split() == [f"{name}={value}" for name, value in written.items()]


def test_whoever_asks_the_engine_gets_its_key() -> None:
    for name in ("init", "engine", "inference", "release"):
        assert SERVICES[name]["environment"][ENGINE_KEY] == "${MILLRACE_ENGINE_KEY:?run deploy/env first}", name
    assert SERVICES["engine"].get("ports") is None, "nobody outside may reach it"
