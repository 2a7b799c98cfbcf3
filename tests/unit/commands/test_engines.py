"""Which engines the options of `up` start, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from sqlalchemy import update

from commands.engines import check_announced, check_given, choose_engine, engine_findings, settled, train_finding
from commands.home import Home
from commands.sections import check_sections, sections_finding
from commands.supervisor import replica_names
from commands.up import listen
from contracts.assignments import SLOTS
from contracts.engines import EngineReplica, announce
from contracts.errors import InvalidSettings
from contracts.tables import engine_replica
from engines.vllm.settings import VllmSettings
from pipelines.training.settings import AdapterSettings, TrainingSettings
from runtime.settings import Settings, load_section, write_settings
from tests.unit.engines.vllm.fake_vllm import FakeModel, FakeVllm
from tests.unit.services.serving import serve

PYTHON = Path(sys.executable)
SLOTS_OF_HOMES = {"all": SLOTS, "default": ("live", "candidate"), "canary": ("live", "candidate", "canary")}
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002", "http://127.0.0.1:8003")


def test_our_engine_alone_in_any_number() -> None:
    assert choose_engine("millrace", None, 2).num_own == 1
    assert choose_engine("millrace", None, 2, 3).num_own == 3
    with pytest.raises(InvalidSettings, match="--engines 0 leaves no engine"):
        choose_engine("millrace", None, 2, 0)


def test_a_gpu_is_vllms_and_ours_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine(None, None, 2).kind == "millrace"
    there = choose_engine(None, PYTHON, 2, device="cuda")
    assert (there.kind, there.num_own, there.limits()) == ("vllm", 0, [])
    assert choose_engine(None, None, 2, urls=URLS[:2], device="cuda").num_own == 0
    monkeypatch.setenv("MILLRACE_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(InvalidSettings, match=r"/nowhere/python is not there.*`make vllm CUDA=1`.*--engine millrace"):
        choose_engine(None, None, 2, device="cuda:1")
    [says] = choose_engine("millrace", None, 2, device="cuda").limits()
    assert "our own engine on cuda is for trying out" in says
    assert choose_engine("millrace", None, 2).limits() == []


def test_vllm_alone_or_beside_ours() -> None:
    alone, mixed = choose_engine("vllm", PYTHON, 3), choose_engine("vllm", PYTHON, 1, 2)
    assert (alone.num_own, alone.workers) == (0, ("vllm",))
    assert alone.servers is not None
    assert alone.servers.slots == ("live", "candidate", "live")
    assert (mixed.num_own, mixed.limits()) == (2, []), "ours has a candidate slot"
    one = choose_engine("vllm", PYTHON, 1)
    assert one.limits() == one.limits(TrainingSettings()) != []
    assert one.limits(TrainingSettings(adapter=AdapterSettings())) == [], "a server holds all arms as adapters"


def test_running_servers_are_followed() -> None:
    chosen = choose_engine("vllm", None, 2, urls=URLS)
    assert chosen.servers is not None
    assert (chosen.servers.urls, chosen.servers.slots) == (URLS, ("live", "candidate", "live"))
    assert chosen.num_own == 0
    assert choose_engine("millrace", None, 2, urls=URLS[:1]).num_own == 1, "beside ours"


def test_slots_are_named_on_the_command_line() -> None:
    own = choose_engine("millrace", None, 2, slots="live, candidate,canary")
    assert (own.workers, list(own.sections)) == ((), ["engine"])
    assert own.own is not None
    assert own.own.model_dump(exclude_unset=True) == {"slots": ("live", "candidate", "canary")}
    assert choose_engine("millrace", None, 2).sections == {}, "a home keeps its slots"

    servers = choose_engine("vllm", PYTHON, 2, slots="live,live,canary,candidate,learning")
    assert servers.servers is not None
    assert servers.servers.slots == ("live", "live", "canary", "candidate", "learning")
    for kind, urls, slots, says in (
        ("millrace", (), "live,training", "--slots"),
        ("millrace", (), "live,live", "names an arm twice"),
        ("vllm", URLS[:2], "live,canary,candidate", "names 2 servers for 3 slots"),
        ("vllm", URLS[:2], "live,blue", r"\[vllm\] slots"),
    ):
        with pytest.raises(InvalidSettings, match=says):
            choose_engine(kind, None, 2, None, urls, slots=slots)


def test_doctor_says_how_far_the_slots_carry_a_train() -> None:
    says = {name: train_finding(slots, is_enabled=True).says for name, slots in SLOTS_OF_HOMES.items()}
    assert says["all"] == "engines have slots for canary, learning, holdout"
    assert "no engine has a slot for canary: a version that passed the gate goes live at once" in says["default"]
    assert ("canary" in says["canary"], "learning" in says["canary"]) == (False, True)
    assert "goes live at once" in train_finding(SLOTS, is_enabled=False).says
    gone = train_finding(SLOTS_OF_HOMES["default"], is_enabled=True, has_proved=True)
    assert not gone.good
    assert "versions that passed the gate wait for one" in gone.says
    assert train_finding(SLOTS_OF_HOMES["all"], is_enabled=True, has_proved=True).good


def test_each_replica_of_the_engine_has_a_port_of_its_own() -> None:
    sockets = listen(0, num_engines=3)
    assert list(sockets) == ["web", *replica_names("engine", 3)] == ["web", "engine", "engine-2", "engine-3"]
    assert len({listening.getsockname()[1] for listening in sockets.values()}) == 4
    for listening in sockets.values():
        listening.close()


class TestGivenServers:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        (tmp_path / "base").mkdir()
        (tmp_path / "base" / "config.json").write_text('{"model_type": "llama", "vocab_size": 8}')
        (tmp_path / "base" / "tokenizer.json").write_text("t")
        (tmp_path / "engine.key").write_text("k" * 43)
        more = {"base": str(tmp_path / "base"), "tasks": (Path("none"),), "weights_unsigned": True}
        return Settings.model_validate({"home": tmp_path, "run": "r", "policy": "p", **more})

    def test_a_server_of_this_base_is_taken_and_anothers_is_refused(self, settings: Settings) -> None:
        fake = FakeVllm(FakeModel())
        fake.config.model = fake.config.tokenizer = settings.base
        with serve(fake.app()) as url:
            chosen = choose_engine("vllm", None, 2, None, (url,))
            check_given(chosen, settings)
            other = settings.home / "other"
            other.mkdir()
            (other / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 8}')
            fake.config.model = str(other)
            with pytest.raises(InvalidSettings, match=r"serves another model.*model_type"):
                check_given(chosen, settings)

    def test_a_server_that_is_not_there_is_named(self, settings: Settings) -> None:
        with pytest.raises(InvalidSettings, match=r"--engine-url http://127.0.0.1:1: .* did not answer"):
            check_given(choose_engine("vllm", None, 2, None, ("http://127.0.0.1:1",)), settings)

    def test_a_mixture_of_experts_is_refused_for_vllm_on_cpu(self, settings: Settings) -> None:
        (settings.home / "base" / "config.json").write_text('{"model_type": "qwen3_moe", "num_experts": 4}')
        with pytest.raises(InvalidSettings, match="is a mixture of experts"):
            settled(choose_engine("vllm", PYTHON, 2), settings, TrainingSettings())
        given = choose_engine("vllm", None, 2, None, URLS[:2])
        settled(given, settings.model_copy(update={"device": "cuda"}), TrainingSettings())
        settled(choose_engine("millrace", None, 2), settings, TrainingSettings())

    def test_where_masters_are_is_written_once_if_servers_share_the_card(
        self, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 512}
        (tmp_path / "base" / "config.json").write_text(json.dumps(config))
        weights = 30 * 2**20  # a sparse file
        header = {"model.layers.0.up.weight": {"dtype": "BF16", "shape": [weights], "data_offsets": [0, 2 * weights]}}
        text = json.dumps(header).encode()
        with (tmp_path / "base" / "model.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + 2 * weights)
        small, chosen = settings.model_copy(update={"device": "cuda"}), choose_engine("vllm", PYTHON, 2)
        monkeypatch.setenv("PATH", str(tmp_path))
        for mebibytes, masters in ((40_000, "device"), (6900, "host")):
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho {mebibytes}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)
            found, way = settled(chosen, small, TrainingSettings())
            assert (found.masters, way is None) == (masters, False)
        write_settings(small, {"training": found})
        assert settled(chosen, small, TrainingSettings(learning_rate=0.5)) == (
            found.model_copy(update={"learning_rate": 0.5}),
            None,
        )
        path = write_settings(small, {"training": TrainingSettings()})
        path.write_text(path.read_text().replace("[training]", "[training]\nadapter = 8"))
        with pytest.raises(InvalidSettings, match=r"millrace.toml: \[training\] adapter:"):
            settled(chosen, small, TrainingSettings())

    def test_nothing_is_asked_without_urls(self, settings: Settings) -> None:
        check_given(choose_engine("vllm", PYTHON, 2), settings)


def test_an_engine_that_is_not_here_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"--engine is millrace or vllm, not 'tgi'$"):
        choose_engine("tgi", None, 2)
    with pytest.raises(InvalidSettings, match="SGLang is not supported any more"):
        choose_engine("sglang", None, 2, None, URLS)


def test_a_home_with_an_engine_that_left_is_refused_by_name(home: Home) -> None:
    path = write_settings(home.settings, {})
    check_sections(home.settings.home)
    path.write_text(path.read_text() + '\n[sglang]\nurls = ["http://127.0.0.1:30000"]\n')
    with pytest.raises(
        InvalidSettings, match=r"millrace.toml: \[sglang\]; SGLang is not supported.*serve on vLLM.*remove the section"
    ):
        check_sections(home.settings.home)


def test_a_mistake_in_the_section_of_followed_servers_is_named_only_where_there_is_one(home: Home) -> None:
    path = write_settings(home.settings, {})
    path.write_text(path.read_text() + '\n[vllm]\nurls = ["http://127.0.0.1:8000"]\n')
    with pytest.raises(InvalidSettings, match=r"\[vllm\].*urls names 1 servers for 2 slots"):
        check_sections(home.settings.home)


def test_a_section_of_followed_servers_that_a_start_completes_is_taken(home: Home) -> None:
    path = write_settings(home.settings, {})
    path.write_text(path.read_text() + '\n[vllm]\nweights = "http://127.0.0.1:18561"\nthreads = 1\n')
    with pytest.raises(InvalidSettings, match=r"\[vllm\].*python is missing"):
        check_sections(home.settings.home)
    sections = choose_engine("vllm", PYTHON, 2).sections
    check_sections(home.settings.home, given=sections)
    write_settings(home.settings, sections)
    kept = load_section(home.settings.home, "vllm", VllmSettings)
    assert (kept.weights, kept.threads, kept.python) == ("http://127.0.0.1:18561", 1, PYTHON)
    assert sections_finding(home.settings.home).says.endswith("webhooks, provider, telemetry, vllm can be read")


def test_a_replica_of_an_engine_that_left_is_refused_by_name_while_it_announces_itself(home: Home) -> None:
    row = EngineReplica(
        "sglang-1", "booking", "http://127.0.0.1:30000", "sglang", "local", "serving", {"live": 0}, frozenset(), "1", "sglang", "bfloat16",
        0.0, home.settings.run,
    )  # fmt: skip
    check_announced(home.settings)
    database = home.settings.database()
    with database.transaction() as connection:
        announce(connection, row)
    with pytest.raises(
        InvalidSettings, match=r"sglang-1 at http://127.0.0.1:30000 announces itself as sglang.*SGLang is not"
    ):
        check_announced(home.settings)
    (home.settings.home / "engine.key").write_text("k" * 43)
    says = [finding.says for finding in engine_findings(home.settings) if finding.needed and not finding.good]
    assert any("sglang-1" in text and "unknown_kind" in text and "SGLang is not supported" in text for text in says)
    with database.transaction() as connection:
        connection.execute(update(engine_replica).values(seen_at=1.0))
    database.close()
    check_announced(home.settings)
