"""Which servers of others are taken, and what they are said to be able to do."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from contracts.errors import InvalidSettings, Unavailable
from engines.following.driver import ServerFacts, abilities, check_server
from engines.vllm.deliver import VllmServer
from tests.unit.engines.vllm.fake_vllm import FakeModel, FakeVllm

URL = "http://10.0.0.1:8000"


def folder(path: Path, tokenizer: str = "t", **config: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8, "dtype": "x"} | config))
    (path / "tokenizer.json").write_text(tokenizer)
    return path


def facts(model: Path, tokenizer: Path | None = None) -> ServerFacts:
    return ServerFacts(str(model), str(tokenizer or model), "float32", True, True, True, 20, False)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folder(tmp_path / "base")


def test_the_same_model_elsewhere_is_taken(base: Path, tmp_path: Path) -> None:
    check_server(facts(folder(tmp_path / "copy", dtype="float32")), base, URL)


def test_another_model_or_tokenizer_is_refused_by_what_differs(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"10.0.0.1:8000 serves another model.*vocab_size.* is 9, .* 8"):
        check_server(facts(folder(tmp_path / "b", vocab_size=9)), base, URL)
    with pytest.raises(InvalidSettings, match="another tokenizer"):
        check_server(facts(base, folder(tmp_path / "c", tokenizer="u")), base, URL)
    with pytest.raises(InvalidSettings, match="cannot be read on this host"):
        check_server(facts(Path("org/model-on-a-hub")), base, URL)


def test_abilities_are_those_that_it_was_started_with(base: Path) -> None:
    assert abilities(facts(base)) == {"spans", "penalties", "logprobs", "top_logprobs", "constraints", "seed"}
    poor = facts(base)._replace(has_sampled_logprobs=False, num_top_logprobs=19, has_experts=True)
    assert abilities(poor) == {"spans", "penalties", "constraints", "seed", "experts"}


class TestVllm:
    @pytest.fixture
    def fake(self) -> FakeVllm:
        return FakeVllm(FakeModel())

    def asked(self, fake: FakeVllm) -> ServerFacts:
        with fake.driver() as driver:
            return driver.facts()

    def test_it_says_how_it_was_started(self, fake: FakeVllm) -> None:
        assert self.asked(fake) == ServerFacts("/base", "/base", "float32", True, True, True, 20, False)
        fake.config.logprobs_mode = "raw_logprobs"
        assert not self.asked(fake).has_sampled_logprobs

    def test_what_cannot_be_followed_is_refused_by_name(self, fake: FakeVllm) -> None:
        fake.has_generate = False
        with pytest.raises(InvalidSettings, match="--enable-scale-out"):
            self.asked(fake)
        fake.has_generate, fake.config.logprobs_mode = True, "raw_logits"
        with pytest.raises(InvalidSettings, match="raw_logits instead of log-probs"):
            self.asked(fake)

    @pytest.mark.parametrize(
        ("status", "says"),
        [(404, "VLLM_SERVER_DEV_MODE=1"), (500, "without our plug-in"), (401, "refuses this home's engine key")],
    )
    def test_a_server_without_the_plug_in_or_with_another_key_is_refused(self, status: int, says: str) -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(status, json={"error": {"message": "no"}}))
        with httpx.Client(base_url=URL, transport=transport) as client, pytest.raises(InvalidSettings, match=says):
            VllmServer(client).facts()

    def test_a_server_that_is_not_there_is_unavailable(self) -> None:
        with httpx.Client(base_url="http://127.0.0.1:1") as client, pytest.raises(Unavailable, match="did not answer"):
            VllmServer(client).facts()
