"""The Helm chart against docker-compose.yml, the code and its own values.

What reads the chart's files runs everywhere. What reads rendered manifests needs helm: `make helm` renders them and runs these tests;
without it they are skipped by name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.process import PROCESSES
from commands.sections import KINDS
from runtime.operations import OPERATIONS_ADDRESS
from runtime.settings import Settings
from runtime.settings_file import SETTINGS
from services.dashboard.live.traffic import CONSUMERS
from services.serving import DRAIN_SECONDS
from tests.given_secrets import NEEDED
from tests.yaml_files import read_yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "millrace"
VALUES_TEXT = (CHART / "values.yaml").read_text()
VALUES: dict[str, Any] = yaml.safe_load(VALUES_TEXT)
TEMPLATES = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
SETS = sorted(path.stem for path in (CHART.parent / "values").glob("*.yaml"))
RENDERED = Path(os.environ.get("MILLRACE_HELM", ROOT / ".helm")) / "rendered"
COMPOSE: dict[str, dict[str, Any]] = read_yaml(ROOT / "docker-compose.yml")["services"]
OURS = set(PROCESSES) - {"web"}
PORTS = {"inference": 8400, "engine": 8401, "feedback": 8402, "dashboard": 8403}


# ── the files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def leaves(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}")
    elif isinstance(values, list) and values and isinstance(values[0], dict):
        yield from leaves(values[0], path)
    else:
        yield path


def test_every_value_is_explained() -> None:
    """A comment stands above each, or above the group `nodeSelector, tolerations, affinity`, which has one for the three."""
    unexplained, above = [], ""
    for line in VALUES_TEXT.splitlines():
        text = line.strip().removeprefix("- ")
        if re.match(r"\w+:", text):
            name = text.partition(":")[0]
            is_group = not text.partition(":")[2].strip()
            if not above.startswith("#") and not is_group and name not in {"tolerations", "affinity"}:
                unexplained.append(line)
            above = ""
        if text:
            above = text
    assert unexplained == []


def whole(path: str) -> str:
    """What templates take as a whole is one value."""
    return re.sub(r"^(.*\.(resources|seccompProfile|lagScaling|autoscaling))\b.*", r"\1", path)


def test_every_value_is_used() -> None:
    names = {whole(path).rpartition(".")[2] for path in leaves(VALUES)}
    unused = {name for name in names if not re.search(rf'\.{name}\b|"{name}"', TEMPLATES)}
    assert unused == set()


def test_the_schema_knows_exactly_these_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(part: dict[str, Any], path: str) -> Iterator[str]:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        if "items" in part and "properties" in part["items"]:
            part = part["items"]
        if "properties" not in part:
            yield path
            return
        assert part["additionalProperties"] is False, path
        for name, value in part["properties"].items():
            yield from known(value, f"{path}.{name}")

    here, there = {whole(path) for path in leaves(VALUES)}, {whole(path) for path in known(schema, "")}
    assert there - {".global", ".images.pullSecrets.name"} == here - {".images.pullSecrets"}


def test_each_process_gets_the_secrets_that_it_needs() -> None:
    found = re.search(r'define "millrace.secrets" -}}\n(.*?)\{\{- end', TEMPLATES, re.DOTALL)
    assert found is not None
    assert yaml.safe_load(found.group(1)) == {process: list(names) for process, names in NEEDED.items()}


@pytest.mark.parametrize("name", SETS)
def test_gpus_are_for_the_trainer_and_not_for_our_own_engine(name: str) -> None:
    values = yaml.safe_load((CHART.parent / "values" / f"{name}.yaml").read_text())
    pools = values.get("engine", VALUES["engine"]).get("pools", VALUES["engine"]["pools"])
    assert {(pool["device"], pool["gpus"]) for pool in pools} == {("cpu", 0)}
    assert (values.get("training", VALUES["training"])["device"] == "cuda") is (name in {"gpus", "ranks-2", "ranks-8"})


def test_the_alarms_are_those_of_the_other_deployments() -> None:
    assert (CHART / "alerts.yml").resolve() == ROOT / "deploy" / "alerts.yml"


def test_lag_is_asked_for_the_groups_that_read() -> None:
    assert {"episodes", "rewards"} <= set(CONSUMERS.values())


# ── what helm renders ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=SETS)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    file = RENDERED / f"{request.param}.yaml"
    if not file.exists():
        pytest.skip("the chart is not rendered: make helm")
    return [manifest for manifest in yaml.safe_load_all(file.read_text()) if manifest is not None]


def workloads(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Process, manifest and pod of each."""
    for manifest in manifests:
        if manifest["kind"] in {"Deployment", "StatefulSet", "Job"}:
            pod = manifest["spec"]["template"]
            yield pod["metadata"]["labels"]["app.kubernetes.io/component"], manifest, pod


def of_kind(manifests: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_each_process_of_compose_has_a_workload(manifests: list[dict[str, Any]]) -> None:
    found = {process for process, _, _ in workloads(manifests)}
    assert found == OURS | {"init"} == set(NEEDED)
    assert OURS | {"init"} <= set(COMPOSE)
    for process, _, pod in workloads(manifests):
        [container] = pod["spec"]["containers"]
        command, *more = container["args"]
        assert (command, more[:2]) == (process, ["--home", "/var/lib/millrace"])
        assert process == "training" or (more[2:], container.get("command")) == ([], None)


def test_ports_and_probes_are_real(manifests: list[dict[str, Any]]) -> None:
    for process, _, pod in workloads(manifests):
        if process == "init":
            continue
        [container] = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports.pop("operations") == int(environment(pod)[OPERATIONS_ADDRESS].rpartition(":")[2])
        assert ports == ({"http": PORTS[process]} if process in PORTS else {})
        paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert {name: probe["path"] for name, probe in paths.items()} == {
            "startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready",
        }  # fmt: skip
        assert {probe["port"] for probe in paths.values()} == {"operations"}


def test_each_process_has_longer_to_end_than_it_takes(manifests: list[dict[str, Any]]) -> None:
    for process, _, pod in workloads(manifests):
        if process == "init":
            continue
        [container] = pod["spec"]["containers"]
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert grace - before >= int(COMPOSE[process]["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS, process
        assert (before > 0) == (process in {"inference", "feedback", "dashboard"}), process


def test_selectors_find_their_pods_and_no_others(manifests: list[dict[str, Any]]) -> None:
    pods = [(process, pod["metadata"]["labels"]) for process, _, pod in workloads(manifests)]
    for process, manifest, pod in workloads(manifests):
        if process != "init":
            assert manifest["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    for manifest in of_kind(manifests, "Service", "PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        found = {process for process, labels in pods if wanted.items() <= labels.items()}
        assert found == {manifest["metadata"]["labels"]["app.kubernetes.io/component"]}
    names = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "Service")}
    for manifest in of_kind(manifests, "StatefulSet"):
        assert manifest["spec"]["serviceName"] in names
    for manifest in of_kind(manifests, "ScaledObject", "HorizontalPodAutoscaler"):
        target = manifest["spec"]["scaleTargetRef"]["name"]
        [scaled] = [m for m in of_kind(manifests, "Deployment", "StatefulSet") if m["metadata"]["name"] == target]
        assert "replicas" not in scaled["spec"], "two would decide about the number"


def test_no_volume_is_shared_and_state_outlives_its_pod(manifests: list[dict[str, Any]]) -> None:
    for process, manifest, pod in workloads(manifests):
        homes = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "home"]
        claims = manifest["spec"].get("volumeClaimTemplates", [])
        if process == "training" and manifest["spec"]["replicas"] > 1:
            continue  # see the test of ranks
        if process in {"inference", "training", "engine"}:
            assert (homes, [claim["metadata"]["name"] for claim in claims]) == ([], ["home"])
            assert [claim["spec"]["accessModes"] for claim in claims] == [["ReadWriteOnce"]]
        else:
            assert (homes, claims) == ([{"name": "home", "emptyDir": {}}], [])
        [container] = pod["spec"]["containers"]
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable - {"/dev/shm"} == {"/var/lib/millrace", "/tmp"}  # noqa: S108 volumes of the pod


def test_pods_run_without_rights(manifests: list[dict[str, Any]]) -> None:
    for _, _, pod in workloads(manifests):
        of_pod = pod["spec"]["securityContext"]
        [container] = pod["spec"]["containers"]
        assert (of_pod["runAsNonRoot"], of_pod["runAsUser"], of_pod["fsGroup"]) == (True, 10001, 10001)
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert {"requests", "limits"} <= container["resources"].keys()


def test_no_secret_is_in_a_map_and_every_one_comes_from_a_secret(manifests: list[dict[str, Any]]) -> None:
    for process, _, pod in workloads(manifests):
        env = environment(pod)
        for name in NEEDED[process]:
            assert env[name]["secretKeyRef"]["key"] == name
        others = {name for names in NEEDED.values() for name in names} - set(NEEDED[process])
        assert not others & env.keys(), process
        for name, value in env.items():
            if re.search("PASSWORD|SECRET|_KEY", name):
                assert "secretKeyRef" in value, name
    assert of_kind(manifests, "Secret") == []
    for manifest in of_kind(manifests, "ConfigMap"):
        for text in manifest["data"].values():
            for url in re.findall(r"://([^/@\"]*)@", text):
                assert ":" not in url, "a password"


def test_what_the_maps_say_can_be_read_by_the_processes(manifests: list[dict[str, Any]]) -> None:
    maps = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    services = {m["metadata"]["name"]: {p["port"] for p in m["spec"]["ports"]} for m in of_kind(manifests, "Service")}
    for process, _, pod in workloads(manifests):
        [name] = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
        env = environment(pod)
        content = tomllib.loads(maps[name][Path(env[SETTINGS]).name])
        references = set(re.findall(r"\$\{(\w+)\}", str(content)))
        assert references <= env.keys(), process
        settings = Settings.model_validate({"home": "/var/lib/millrace", **content["millrace"]})
        for section, kind in KINDS.items():
            values = yaml.safe_load(re.sub(r"\$\{\w+\}", "x", json.dumps(content.get(section, {}))))
            kind.model_validate(values)
        for host, port in (
            (settings.web_host, settings.web_port),
            (settings.engine_host, settings.engine_port),
            (settings.feedback_host or "", settings.feedback_port),
            (settings.dashboard_host or "", settings.dashboard_port),
        ):
            assert port in services[host], host


def test_gpus_are_asked_for_where_a_device_needs_them(manifests: list[dict[str, Any]]) -> None:
    maps = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    for process, _, pod in workloads(manifests):
        [container] = pod["spec"]["containers"]
        [name] = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
        device = tomllib.loads(maps[name][Path(environment(pod)[SETTINGS]).name])["millrace"].get("device", "cpu")
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert has_gpu == device.startswith("cuda"), process


def trainer_of(manifests: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    [(manifest, pod)] = [(manifest, pod) for process, manifest, pod in workloads(manifests) if process == "training"]
    return manifest["spec"], pod["spec"], pod["spec"]["containers"][0]


def test_every_gpu_of_the_trainer_has_a_rank(manifests: list[dict[str, Any]]) -> None:
    """In one pod our own launcher starts them; over several nodes torchrun does, in each pod as many as it has GPUs."""
    stateful, pod, container = trainer_of(manifests)
    gpus, nodes = container["resources"]["limits"].get("nvidia.com/gpu", 0), stateful["replicas"]
    by_launcher = ["--processes", str(gpus)] if gpus > 1 and nodes == 1 else []
    assert container["args"] == ["training", "--home", "/var/lib/millrace", *by_launcher]
    assert ("shm" in {volume["name"] for volume in pod["volumes"]}) is (gpus > 1)
    if nodes == 1:
        assert "command" not in container
        return
    from torch.distributed.run import get_args_parser  # noqa: PLC0415 it takes seconds, and most sets do not need it

    assert container["command"][:5] == ["tini", "--", "python", "-m", "torch.distributed.run"]
    options = get_args_parser().parse_args(container["command"][5:] + container["args"])
    assert (options.nnodes, options.nproc_per_node, options.module) == (str(nodes), str(gpus), True)
    assert (options.training_script, options.training_script_args) == ("millrace", container["args"])
    host, service = options.rdzv_endpoint.rpartition(":")[0].split(".")
    assert service == stateful["serviceName"]
    assert host == f"{stateful['serviceName'].removesuffix('-pods')}-0"


def test_ranks_on_several_nodes_share_a_volume_and_no_node(manifests: list[dict[str, Any]]) -> None:
    stateful, pod, _ = trainer_of(manifests)
    claims = of_kind(manifests, "PersistentVolumeClaim")
    if stateful["replicas"] == 1:
        assert claims == []
        return
    [home] = [volume for volume in pod["volumes"] if volume["name"] == "home"]
    [claim] = claims
    assert home["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "volumeClaimTemplates" not in stateful
    [apart] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == stateful["selector"]["matchLabels"]


def test_there_are_sets_of_1_of_2_and_of_8_ranks() -> None:
    """They are what the tests above look at, if the chart is rendered."""
    ranks = set()
    for name in SETS:
        training = VALUES["training"] | yaml.safe_load((CHART.parent / "values" / f"{name}.yaml").read_text()).get(
            "training", {}
        )
        ranks.add(max(1, training["gpus"]) * training["nodes"])
    assert {1, 2, 8} <= ranks


def test_the_lag_of_no_more_pods_than_partitions_is_scaled(manifests: list[dict[str, Any]]) -> None:
    [shared] = [
        m["data"]["millrace.toml"]
        for m in of_kind(manifests, "ConfigMap")
        if m["metadata"]["name"].endswith("-settings")
    ]
    partitions = tomllib.loads(shared)["millrace"]["partitions"]
    for scaled in of_kind(manifests, "ScaledObject"):
        spec, process = scaled["spec"], scaled["metadata"]["labels"]["app.kubernetes.io/component"]
        if process == "engine":
            continue
        assert process in {"episodes", "rewards"}
        assert spec["minReplicaCount"] <= spec["maxReplicaCount"] == partitions
        [trigger] = spec["triggers"]
        assert f'millrace_lag_records{{group="{process}"' in trigger["metadata"]["query"]


def test_engines_are_scaled_by_what_users_ask_for(manifests: list[dict[str, Any]]) -> None:
    sets = {manifest["metadata"]["name"]: manifest["spec"] for manifest in of_kind(manifests, "StatefulSet")}
    scaled = [m for m in of_kind(manifests, "ScaledObject") if m["spec"]["scaleTargetRef"].get("kind") == "StatefulSet"]
    for name, spec in ((m["metadata"]["name"], m["spec"]) for m in scaled):
        assert spec["scaleTargetRef"]["name"] == name
        assert "replicas" not in sets[name], "two would set it"
        assert spec["minReplicaCount"] <= spec["maxReplicaCount"]
        assert "millrace_users_in_flight{" in spec["triggers"][0]["metadata"]["query"]
    without = [name for name, spec in sets.items() if "replicas" not in spec and "inference" not in name]
    assert without == [manifest["metadata"]["name"] for manifest in scaled]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("inference.replica=3", "at '/inference': additional properties 'replica' not allowed"),
        ("kafka.partitions=2", "at '/kafka/partitions': minimum: got 2, want 4"),
        ("product.policy=", "at '/product/policy': '' does not match pattern"),
        ("training.graceSeconds=10", "at '/training/graceSeconds': minimum: got 10, want 45"),
    ],
)
def test_a_wrong_value_is_refused_by_name(mistake: str, says: str) -> None:
    helm = RENDERED.parent / "bin" / "helm"
    if not RENDERED.exists() or not helm.exists():
        pytest.skip("helm is not here: make helm")
    command = [str(helm), "template", "m", str(CHART), "--kube-version", "1.30.0", "--set", mistake]
    command += ["--values", str(CHART.parent / "values" / "small.yaml")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 built by deploy/helm/check
    assert refused.returncode == 1
    assert says in refused.stderr
