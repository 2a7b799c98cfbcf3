"""Every sampling option on a real vLLM: the log-prob that it reports is that of the distribution that it sampled from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from contracts.errors import InvalidRequest
from contracts.sampling import Sampling
from engines.token_route import read_event
from engines.vllm.kind import vllm_body
from engines.wire import EngineRequest
from policy.load import load_model
from tests.integration.vllm.world import PRODUCT, VllmWorld
from tests.tolerances import network_tolerance

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROMPT = [int(word) for word in np.random.default_rng(11).integers(3, 700, 16)]


class Reference:
    """The distribution of each place, by transformers' forward pass and the order in which vLLM applies its options."""

    def __init__(self) -> None:
        self.model: Any = load_model(str(PRODUCT / "base"), device="cpu", dtype=torch.float32)
        self.tolerance = network_tolerance(self.model.config)

    def logprobs(self, tokens: list[int], options: dict[str, Any]) -> list[torch.Tensor]:
        with torch.no_grad():
            logits = self.model(torch.tensor([[*PROMPT, *tokens]])).logits[0].double()
        return [self._one(logits[len(PROMPT) - 1 + place], tokens[:place], options) for place in range(len(tokens))]

    def _one(self, logits: torch.Tensor, made: list[int], options: dict[str, Any]) -> torch.Tensor:
        logits = logits.clone()
        for token, bias in options.get("logit_bias", {}).items():
            logits[int(token)] += bias
        seen = torch.tensor(sorted({*PROMPT, *made}))
        penalty = options.get("repetition_penalty", 1.0)
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        counts = torch.bincount(torch.tensor(made, dtype=torch.long), minlength=len(logits)).double()
        logits -= options.get("frequency_penalty", 0.0) * counts + options.get("presence_penalty", 0.0) * (counts > 0)
        logits /= options.get("temperature", 1.0)
        probabilities = torch.softmax(logits, -1)
        logits[probabilities < options.get("min_p", 0.0) * probabilities.max()] = -torch.inf
        if top_k := options.get("top_k", 0):
            logits[logits < logits.topk(top_k).values[-1]] = -torch.inf
        ordered, places = torch.softmax(logits, -1).sort(descending=True)
        beyond = (ordered.cumsum(0) - ordered) >= options.get("top_p", 1.0)
        logits[places[beyond]] = -torch.inf
        return torch.log_softmax(logits, -1)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"logit_bias": {"26": 4.0, "280": -100.0}},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.8, "presence_penalty": 0.4},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2, "logit_bias": {"30": 2.0}},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_the_log_prob_is_that_of_what_was_sampled_from(
    world: VllmWorld, reference: Reference, options: dict[str, Any]
) -> None:
    world.bring(0)
    answer = world.answer(PROMPT, seed=3, max_tokens=20, **options)
    expected = reference.logprobs(answer.tokens, options)
    found = [float(row[token]) for row, token in zip(expected, answer.tokens, strict=True)]
    scale = 1.0 / min(1.0, options.get("temperature", 1.0))
    assert answer.logprobs == pytest.approx(found, abs=10 * scale * reference.tolerance)


def test_a_seed_repeats_an_answer_and_another_one_does_not(world: VllmWorld) -> None:
    world.bring(0)
    first = world.answer(PROMPT, seed=42, temperature=1.5, max_tokens=40)
    assert world.answer(PROMPT, seed=42, temperature=1.5, max_tokens=40).tokens == first.tokens
    assert world.answer(PROMPT, seed=43, temperature=1.5, max_tokens=40).tokens != first.tokens


def test_top_logprobs_are_the_likeliest_of_the_same_distribution(world: VllmWorld, reference: Reference) -> None:
    world.bring(0)
    answer = world.answer(PROMPT, logprobs=5, temperature=0.8)
    for row, tops in zip(reference.logprobs(answer.tokens, {"temperature": 0.8}), answer.tops, strict=True):
        assert set(row.topk(5).indices.tolist()) <= set(tops)


SCHEMA = {
    "type": "object",
    "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}, "day": {"enum": ["monday", "friday"]}},
    "required": ["people", "day"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("constraint", [{"json": SCHEMA}, {"grammar": 'start: "yes" | "no"'}], ids=["json", "lark"])
def test_a_grammar_holds_and_its_log_probs_are_those_of_the_masked_distribution(
    world: VllmWorld, constraint: dict[str, Any]
) -> None:
    world.bring(0)
    answer = world.answer(PROMPT, structured_outputs=constraint, max_tokens=200, ignore_eos=False, temperature=1.5)
    assert answer.finish_reason == "stop", answer
    text = Tokenizer.from_file(str(PRODUCT / "base" / "tokenizer.json")).decode(answer.tokens)
    if "json" in constraint:
        made = json.loads(text)
        assert set(made) == {"people", "day"}
        assert 1 <= made["people"] <= 9
    else:
        assert text in {"yes", "no"}
    assert all(-60 < logprob <= 1e-6 for logprob in answer.logprobs)


def test_a_grammar_that_cannot_be_read_is_refused_by_name(world: VllmWorld) -> None:
    """vLLM answers 200 and refuses in the stream; our reader makes it the refusal of a request."""
    world.bring(0)
    (event,) = list(world.events(PROMPT, max_tokens=5, structured_outputs={"grammar": "start: (((("}))
    with pytest.raises(InvalidRequest, match="Grammar error"):
        read_event(json.dumps(event).encode(), 0)


def test_what_inference_sends_is_what_the_server_takes(world: VllmWorld) -> None:
    """Our own request and reader, against the real server."""
    world.bring(2)
    sampling = Sampling(temperature=0.9, top_p=0.95, max_tokens=12, seed=4, logit_bias={26: 1.5}, frequency_penalty=0.2)
    request = EngineRequest("reservations", PROMPT, sampling, "t-1", background=True, num_top=3)
    pieces, made = [], 0
    with world.client() as client:
        headers = {"content-type": "application/json"}
        with client.stream("POST", "/inference/v1/generate", content=vllm_body(request), headers=headers) as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    piece = read_event(line[6:].encode(), 0, request.num_top)
                    if piece.tokens or piece.finish_reason is not None:  # behind the last comes the usage
                        pieces.append(piece)
                    made += len(piece.tokens)
    assert made <= 12
    assert pieces[-1].finish_reason in {"stop", "length"}
    assert [(span.start, span.version) for piece in pieces for span in piece.spans] == [(0, 2)]
    assert all(len(token.top) == 3 for piece in pieces for token in piece.tokens)


def test_the_prefixes_of_a_salt_are_its_own_and_told_behind_the_last_token(world: VllmWorld) -> None:
    """Of one tenant and version; after a swap there are none."""
    world.bring(0)
    prompt = (PROMPT * 100)[:300]

    def cached(scope: str, version: int) -> int | None:
        sampling = Sampling(temperature=1.0, max_tokens=2)
        request = EngineRequest("reservations", prompt, sampling, "t-2", cache_scope=scope).salted(version)
        with world.client() as client:
            body, headers = vllm_body(request), {"content-type": "application/json"}
            answer = client.post("/inference/v1/generate", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return read_event(lines[-1].encode(), 0).num_cached

    assert cached("one", 0) == 0
    assert (cached("one", 0) or 0) > 0
    assert cached("two", 0) == 0
    assert cached("one", 1) == 0, "a version of its own, whatever the server holds"
    world.bring(1)
    assert cached("one", 0) == cached("two", 0) == 0, "the swap emptied it"
