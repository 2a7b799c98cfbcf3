from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commands.home import prepare_home
from commands.sections import sections_finding
from commands.supervisor import WRONG_SETTINGS
from commands.up import provider_of
from contracts.assignments import LIVE, PROVIDER, read
from contracts.errors import InvalidSettings, MillraceError
from engines.vllm.settings import VllmSettings
from pipelines.training.settings import AdapterSettings, TrainingSettings
from runtime.settings import Settings, load_section, load_settings, write_settings
from runtime.settings_file import settings_file
from services.provider import ProviderSettings, chosen
from tests.command_line import Ran, refused_up
from tests.command_line import run_here as millrace
from weights.adapters import AdapterConfig
from weights.stores.opening import open_weight_store
from weights.tensors import Tensor, read_safetensors, to_bf16, write_safetensors

ROOT = Path(__file__).parent.parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"
UP = ["--policy", str(PRODUCT / "base"), "--task", str(PRODUCT / "task.toml")]


def process(*arguments: str) -> Ran:
    """The same in a process of its own."""
    command = [sys.executable, str(ROOT / "millrace.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 our own script
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    base, tasks = str(PRODUCT / "base"), (PRODUCT / "task.toml",)
    return Settings(home=tmp_path / "home", run="r", policy="reservations", base=base, tasks=tasks)


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["demo-agent"], ["demo-takeover"], ["up"], ["policy", "rollback"], ["log", "tail"], ["audit"]],
)
def test_help_explains(command: list[str]) -> None:
    ran = millrace(*command, "--help")
    assert ran.returncode == 0
    assert "Usage" in ran.stdout


def test_a_home_can_be_prepared_twice_and_keys_are_shown_once(settings: Settings) -> None:
    first = prepare_home(settings, {})
    again = prepare_home(settings, {})
    assert first.app_key is not None
    assert again.app_key is None
    assert again.operator_key == first.operator_key
    assert (settings.home / "operator.key").stat().st_mode & 0o077 == 0
    store = open_weight_store(settings)
    assert store.versions("reservations") == [0]
    assert store.load("reservations", 0).keys() == read_safetensors(PRODUCT / "base").keys()


def test_a_home_keeps_its_run_and_its_policy(settings: Settings) -> None:
    prepare_home(settings, {})
    again = prepare_home(settings.model_copy(update={"run": "another", "web_port": 9000}), {})
    assert (again.settings.run, again.settings.web_port) == (settings.run, 9000)
    assert load_settings(settings.home) == again.settings
    with pytest.raises(InvalidSettings, match="choose another --home"):
        prepare_home(settings.model_copy(update={"policy": "another"}), {})


def test_a_second_home_on_a_database_that_is_in_use_is_refused(settings: Settings, tmp_path: Path) -> None:
    prepare_home(settings, {})
    other = tmp_path / "other"
    shared = {"home": other, "database_url": f"sqlite:///{settings.home / 'millrace.db'}"}
    with pytest.raises(InvalidSettings, match="keys of another home"):
        prepare_home(settings.model_copy(update=shared), {})
    assert not (other / "millrace.toml").exists()


def test_a_weight_store_that_lost_the_live_version_is_refused(settings: Settings) -> None:
    prepare_home(settings, {})
    shutil.rmtree(settings.weights)
    with pytest.raises(InvalidSettings, match=r"serves version 0, and the weight store .* has none"):
        prepare_home(settings, {})


def test_settings_are_for_their_owner_only(settings: Settings) -> None:
    prepare_home(settings, {})
    assert (settings.home / "millrace.toml").stat().st_mode & 0o777 == 0o600


def test_a_home_keeps_redis_and_the_limits_that_were_written_into_its_file(settings: Settings) -> None:
    told = {"redis": "redis://127.0.0.1:1/0", "requests_per_minute": 600, "signals_per_minute": 1200}
    told |= {"kafka_session_seconds": 30.0, "feedback_origins": ("https://app.example", "http://127.0.0.1:5173")}
    prepare_home(settings.model_copy(update=told), {})
    again = prepare_home(settings, {}).settings
    assert {name: getattr(again, name) for name in told} == told


@pytest.mark.parametrize(("rank", "in_pieces"), [(0, False), (2, False), (0, True)])
def test_another_adapter_than_the_run_has_is_refused_before_anything_is_written(
    settings: Settings, rank: int, *, in_pieces: bool
) -> None:
    own = TrainingSettings(adapter=AdapterSettings(rank=rank) if rank else None)
    prepare_home(settings, {"training": own})
    folder = settings.checkpoints / "checkpoint-000001-00000001"
    folder.mkdir(parents=True)
    adapter = AdapterConfig(rank=2, alpha=32.0, targets=("q_proj",), base_root="b")
    (folder / "state.json").write_text(json.dumps({"model": adapter.identity if rank else "b", "step": 3}))
    name = "base_model.model.q_proj.lora_A.weight" if rank else "q_proj.weight"
    file = "weights-00001-of-00002.safetensors" if in_pieces else "weights.safetensors"
    if in_pieces:
        (folder / "weights.index.json").write_text("{}")
    write_safetensors(folder / file, {name: Tensor("F32", (2, 1), np.zeros(8, np.uint8))})
    before = settings_file(settings.home).read_bytes()
    ran = refused_up(*UP, "--home", str(settings.home), "--adapter", "8")
    assert ran.returncode == 1
    assert f"has {'an adapter of rank 2' if rank else 'the whole model'}, and another was chosen" in ran.stderr
    assert settings_file(settings.home).read_bytes() == before
    prepare_home(settings, {"training": TrainingSettings()})
    prepare_home(settings, {"training": own})


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "config.json", "model.safetensors"])
def test_a_policy_that_lacks_or_cuts_a_file_starts_nothing(settings: Settings, tmp_path: Path, name: str) -> None:
    base = tmp_path / "base"
    shutil.copytree(PRODUCT / "base", base)
    file = base / name
    if name == "model.safetensors":
        file.write_bytes(file.read_bytes()[:-1000])
    else:
        file.unlink()
    with pytest.raises(MillraceError, match=re.escape(str(base))):
        prepare_home(settings.model_copy(update={"base": str(base)}), {})
    assert not settings.home.exists()


def test_a_verifier_that_does_not_exist_starts_nothing(settings: Settings, tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text((PRODUCT / "task.toml").read_text().replace("json_exact", "json_exakt"))
    with pytest.raises(MillraceError, match="json_exakt"):
        prepare_home(settings.model_copy(update={"tasks": (task,)}), {})
    assert not settings.home.exists()


def test_other_weights_in_the_same_folder_are_refused(settings: Settings, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(PRODUCT / "base", base)
    settings = settings.model_copy(update={"base": str(base)})
    prepare_home(settings, {})
    file = base / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-2:] = bytes(2) if any(content[-2:]) else b"\x3f\x80"
    file.write_bytes(content)
    with pytest.raises(InvalidSettings, match="another --home"):
        prepare_home(settings, {})


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.1, -1.00390625, 3.1415927, 1e-40, 65504.0, 1.01171875])
    source = Tensor("F32", (6,), values.numpy().view("u1"))
    rounded = to_bf16({"w": source})["w"]
    assert rounded.data.view("<i2").tolist() == values.to(torch.bfloat16).view(torch.int16).tolist()


def test_a_home_in_front_of_a_provider_has_no_version_and_says_so(settings: Settings) -> None:
    front = settings.model_copy(update={"base": ""})
    prepare_home(front, {"provider": ProviderSettings(url="http://127.0.0.1:1/v1", model="big")})
    home = ["--home", str(settings.home)]
    assert open_weight_store(front).versions("reservations") == []
    for command in (["policy", "list"], ["policy", "train"], ["doctor"]):
        assert "big at http://127.0.0.1:1/v1 answers here, so there are no versions" in millrace(*command, *home).stdout
    assert millrace("audit", "--settled", *home).returncode == 0


def test_a_home_with_a_policy_takes_no_provider_in_its_place(settings: Settings) -> None:
    prepare_home(settings, {})
    with pytest.raises(InvalidSettings, match=r"a policy of its own, .*: give it with --policy"):
        prepare_home(settings.model_copy(update={"base": ""}), {})


def test_a_provider_stands_in_front_of_a_policy_that_comes_later(settings: Settings) -> None:
    prepare_home(
        settings.model_copy(update={"base": ""}), {"provider": ProviderSettings(url="http://a/v1", model="big")}
    )
    home = ["--home", str(settings.home)]
    assert "no provider stands in front" in millrace("policy", "provider", "1", *home).stderr
    for _ in range(2):
        prepare_home(settings, {})
        with settings.snapshot() as connection:
            arms = read(connection, settings.policy)
        assert {name: (arm.version, arm.share) for name, arm in arms.items()} == {
            LIVE: (0, 1.0),
            PROVIDER: (None, 1.0),
        }
    assert "provider (100.0% of the users)" in millrace("policy", "list", *home).stdout
    write_settings(settings, {"provider": ProviderSettings(url="", model="")})
    with pytest.raises(InvalidSettings, match=r"has 100% of the users of .* \[provider\] is empty"):
        prepare_home(settings, {})
    write_settings(settings, {"provider": ProviderSettings(url="http://a/v1")})
    with pytest.raises(InvalidSettings, match="lacks its model"):
        prepare_home(settings, {})
    write_settings(settings, {"provider": ProviderSettings(url="http://a/v1", model="big")})
    assert "from 0 to 1, not 1.5" in millrace("policy", "provider", "1.5", *home).stderr
    assert "0.0% of the users" in millrace("policy", "provider", "0", *home, "--reason", "over").stdout
    assert "own versions" in millrace("policy", "train", *home).stdout


FRONT = ["--provider-model", "big", "--task", str(PRODUCT / "task.toml"), "--provider"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", str(PRODUCT / "task.toml")], "give --policy FOLDER, or --provider"),
        ([*FRONT, "openai", "--adapter", "8"], "a provider has no engine and no trainer"),
        ([*FRONT, "openai", "--policy", "p"], "OPENAI_API_KEY is not set"),
        ([*FRONT[2:], "openai", "--policy", "p"], "go together"),
        ([*FRONT[:-1], "--policy", "p"], "go together"),
        ([*FRONT, "openai"], "OPENAI_API_KEY is not set"),
        ([*FRONT, "example.com/v1"], "--provider url"),
        ([*FRONT, "http://a/v1", "--input-price", "-1"], "--provider input_price"),
    ],
)
def test_a_mistake_about_a_provider_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ran = refused_up(*arguments, "--home", str(tmp_path / "h"))
    assert (ran.returncode, says in ran.stderr) == (1, True), ran.stderr


def test_what_was_said_of_one_provider_is_not_said_of_another(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    first = provider_of("openai", "gpt", settings.home)
    assert first is not None
    write_settings(settings, {"provider": first})
    write_settings(settings, {"provider": ProviderSettings(may_train=True)})
    for url, kept in (("openai", ("OPENAI_API_KEY", True)), ("http://a/v1", ("MILLRACE_PROVIDER_KEY", False))):
        found = provider_of(url, "big", settings.home)
        assert found is not None
        write_settings(settings, {"provider": found})
        held = load_section(settings.home, "provider", ProviderSettings)
        assert (held.key_from, held.may_train) == kept


def test_a_home_with_a_provider_does_not_start_without_its_key(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write_settings(settings, {"provider": ProviderSettings(**chosen("openai", "gpt"))})
    assert "OPENAI_API_KEY is not set" in refused_up(*UP, "--home", str(settings.home)).stderr


def test_the_command_line_works_on_a_home(settings: Settings) -> None:
    prepare_home(settings, {})
    home = ["--home", str(settings.home)]
    listed = millrace("policy", "list", *home)
    row = next((line for line in listed.stdout.splitlines() if line.startswith("v0 ")), listed.stderr)
    assert "100.0%" in row
    assert len(row) <= 80
    assert "task reservations: UNGATED: no sentinel is of this task" in listed.stdout
    assert millrace("audit", *home).returncode == 0
    assert millrace("log", "tail", "generations", *home).returncode == 0
    assert millrace("keys", *home, "--role", "operator").stdout.startswith("mr-operator-")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--policy", "/nonexistent/policy", "--task", "x.toml"],
            "is not a folder, and it cannot be downloaded as a hub id",
        ),
        (["--policy", str(PRODUCT / "base"), "--task", "/nonexistent.toml"], "nonexistent.toml"),
        ([*UP, "--device", "gpu"], "[millrace] device"),
        ([*UP, "--learning-rate", "-1"], "[training] learning_rate"),
        ([*UP, "--sentinels", "/nonexistent.jsonl"], "nonexistent.jsonl"),
    ],
)
@pytest.mark.slow
def test_mistakes_get_one_line_that_says_what_to_do(tmp_path: Path, arguments: list[str], says: str) -> None:
    ran = refused_up(*arguments, "--home", str(tmp_path / "h"))
    assert ran.returncode == 1
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_a_process_says_a_mistake_as_it_does_here(tmp_path: Path) -> None:
    assert "millrace up --home" in millrace("audit", "--home", "/nonexistent").stderr
    arguments = [*UP, "--learning-rate", "-1", "--home", str(tmp_path / "h")]
    assert process("up", *arguments, "--port", "0") == refused_up(*arguments)


def test_an_unknown_topic_and_a_foreign_version_are_refused(settings: Settings) -> None:
    prepare_home(settings, {})
    home = ["--home", str(settings.home)]
    assert "there are generations" in millrace("log", "tail", "nosuch", *home).stderr
    assert "it has [0]" in millrace("policy", "promote", "7", *home).stderr
    assert millrace("policy", "rollback", *home).returncode == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("[train]\nstages = [0.5, 0.2]", "[train] stages: the shares must rise, for example [0.01, 0.05, 0.2, 0.5], not [0.5, 0.2]"),
        ("[train]\nstages = [0.5, 1.0]", "[train] stages: the shares must lie between 0 and 1"),
        ("[webhooks]\nurls = ['htp:/x']", "[webhooks] urls: 'htp:/x' is not a URL that begins with http:// or https://"),
    ],
)  # fmt: skip
def test_a_mistake_in_any_section_is_named_before_anything_starts(settings: Settings, wrong: str, says: str) -> None:
    path = write_settings(settings, {})
    path.write_text(f"{path.read_text()}\n{wrong}\n")
    before = sorted(settings.home.iterdir())
    with pytest.raises(InvalidSettings, match=re.escape(says)):
        prepare_home(settings, {})
    assert sorted(settings.home.iterdir()) == before
    found = sections_finding(settings.home)
    assert (found.good, found.needed) == (False, True)
    assert says in found.says


def test_a_section_that_a_start_completes_is_not_refused(settings: Settings) -> None:
    prepare_home(settings, {})
    path = settings_file(settings.home)
    path.write_text(f"{path.read_text()}\n[vllm]\nthreads = 1\n")
    prepare_home(settings, {"vllm": VllmSettings(python=Path(sys.executable))})
    assert load_section(settings.home, "vllm", VllmSettings).threads == 1


@pytest.mark.slow
def test_doctor_reports() -> None:
    ran = millrace("doctor")
    assert "python" in ran.stdout
    assert "torch" in ran.stdout


@pytest.mark.slow
def test_a_process_that_lacks_torch_names_the_image_that_has_it(tmp_path: Path) -> None:
    without = "import sys; sys.modules['torch'] = None; import millrace; millrace.main(sys.argv[1:])"
    command = [sys.executable, "-c", without, "engine", "--home", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 our own interpreter
    assert ran.returncode == WRONG_SETTINGS, "another start cannot help"
    assert ran.stderr == (
        "millrace: torch is not installed, and this command needs it: pip install 'millrace[torch]', or use the image millrace-torch\n"
    )


def test_a_process_of_a_home_with_an_engine_that_left_says_so_and_is_not_started_again(settings: Settings) -> None:
    path = write_settings(settings, {})
    path.write_text(path.read_text() + '\n[sglang]\nurls = ["http://127.0.0.1:30000"]\n')
    ran = process("episodes", "--home", str(settings.home))
    assert ran.returncode == WRONG_SETTINGS
    assert "[sglang]; SGLang is not supported any more" in ran.stdout
