"""Brings a vLLM server to a version. In: a verified file. Out: the server serves it. Waits for: the server.

    POST /collective_rpc millrace_stage {version, root, path, base_root}   each worker maps and verifies the file, in a thread
    POST /collective_rpc millrace_state                                    until it has
    GET  /weight_info                                                      must name the base
    POST /pause?mode=keep                                                  requests in flight wait
    POST /start_weight_update                                              each worker checks the base; nothing is written yet
    POST /update_weight_version {"new_version": "v6-to-v7"}                from here to finish, its weights are no version
    POST /update_weights {"update_info": {version, root}}
    POST /finish_weight_update {"weight_version": "v7"}
    POST /reset_prefix_cache?reset_running_requests=true                   requests in flight compute their prefix again
    POST /resume

The routes exist with `VLLM_SERVER_DEV_MODE=1`; the weights are written by the plug-in `engines/vllm/server/receiver.py`. vLLM cannot roll
back: if it fails after it began to write, its weights may be mixed. It then stays paused under the name `v6-to-v7`, even if this
process is killed, so no token comes from them; requests wait. `push` without a base writes all weights, so it heals that server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from engines.following.driver import HeldVersions, Server, ServerFacts, VersionFile, WeightDifference, worse

_POLL_SECONDS = 0.02
_SAMPLED = "processed_logprobs"
_LOGPROBS = (_SAMPLED, "raw_logprobs")
_PLUG_IN = (
    "python -m engines.vllm.server.launcher serve ... --worker-extension-cls engines.vllm.server.receiver.WorkerExtension --weight-transfer-config "
    '\'{"backend": "millrace"}\''
)


class VllmServer:
    """One vLLM server, as an `EngineDriver`, which says what each method promises. `client`: see `Server`."""

    def __init__(self, client: httpx.Client) -> None:
        self._server = Server(client)

    def facts(self) -> ServerFacts:
        """Raises InvalidSettings if it lacks our plug-in, a route or a mode that is needed, or refuses the key."""
        try:
            found = self._workers("millrace_facts")[0]
        except Unavailable as error:
            raise _cannot_follow(self._server.url, error) from error
        self._check_route()
        if (mode := found["logprobs_mode"]) not in _LOGPROBS:
            raise InvalidSettings(
                f"{self._server.url} reports {mode} instead of log-probs; start it with --logprobs-mode {_SAMPLED}"
            )
        return ServerFacts(
            model=str(found["model"]),
            tokenizer=str(found["tokenizer"]),
            dtype=str(found["dtype"]),
            has_sampled_logprobs=mode == _SAMPLED,
            has_constraints=True,
            has_seeds=True,
            num_top_logprobs=int(found["max_logprobs"]) - 1,  # the sampled token counts
            has_experts=bool(found["has_experts"]),
            adapter_rank=int(found["adapter_rank"]),
            num_adapters=int(found["num_adapters"]),
        )

    def held(self) -> HeldVersions:
        """Its name, and what all workers hold."""
        name = str(self._server.get("/weight_info").get("weight_version"))
        states = self._workers("millrace_state")
        found = {(state["version"], state["root"]) for state in states}
        version, root = found.pop() if len(found) == 1 else (None, None)
        return HeldVersions(name, version, root, any(state["is_broken"] for state in states))

    def check(self) -> None:
        """Its workers are not asked."""
        self._server.get("/health")

    def stage(self, target: VersionFile, base_root: str | None) -> None:
        """Let every worker verify a version, and wait for all of them."""
        arguments = {"version": target.version, "root": target.root, "path": str(target.path), "base_root": base_root}
        states = self._workers("millrace_stage", arguments)
        while any(state["is_staging"] for state in states):
            time.sleep(_POLL_SECONDS)
            states = self._workers("millrace_state")
        for state in states:
            if state["error"] is not None:
                raise WeightsRefused(state["error"]["code"], state["error"]["message"], version=target.version)
            if state["staged"] != target.root:
                raise Unavailable(f"{self._server.url} lost v{target.version} while it was staged: stage it again")

    def push(self, target: VersionFile, base: VersionFile | None) -> float:
        """See the module."""
        held = self.held()
        if base is not None and not (held.is_whole and held.root == base.root):
            raise WeightsRefused(
                "wrong_base",
                f"{self._server.url} holds {held.name} with the root {held.root}, the update is for v{base.version} with "
                f"{base.root}: push it without a base",
                holds=held.name,
            )
        paused_at = time.monotonic()
        self._server.post("/pause", params={"mode": "keep"})
        try:
            self._start(is_full=base is None)
        except Unavailable as error:
            stuck = self._server.try_to_resume("/resume") if held.is_whole else None
            raise (worse(error, stuck) if stuck else error) from error
        self._write(held.name.rpartition("-to-")[2], target)
        self._server.post("/resume")
        seconds = time.monotonic() - paused_at
        after = self.held()
        if (after.name, after.root) != (f"v{target.version}", target.root) or after.is_broken:
            raise Unavailable(
                f"{self._server.url} was given v{target.version} and says it holds {after.name} with the root {after.root}",
                mixed=True,
            )
        return seconds

    def compare(self, target: VersionFile) -> WeightDifference:
        """See `server/comparison.py`."""
        found = self._workers("millrace_compare", {"path": str(target.path), "root": target.root})
        equal, *others = (
            tuple(name for worker in found for name in worker[part]) for part in ("equal", "different", "unknown")
        )
        return WeightDifference(len(equal), *others)

    def resume(self) -> None:
        """Requests that waited go on."""
        self._server.post("/resume")

    def is_paused(self) -> bool:
        """Whoever paused it."""
        return bool(self._server.get("/is_paused").get("is_paused"))

    def _start(self, *, is_full: bool) -> None:
        try:
            self._server.post("/start_weight_update")
        except Unavailable as error:
            # An update may have been begun and never written: vLLM ends it by putting the old weights back.
            if not is_full or self._server.try_to_resume("/finish_weight_update", {}):
                raise error from None
            self._server.post("/start_weight_update")

    def _write(self, before: str, target: VersionFile) -> None:
        name = f"v{target.version}"
        try:
            self._server.post("/update_weight_version", {"new_version": f"{before}-to-{name}"})
            self._server.post("/update_weights", {"update_info": {"version": target.version, "root": target.root}})
            self._server.post("/finish_weight_update", {"weight_version": name})
            # What was computed with the old weights must not be used by the new ones; vLLM clears nothing when it pauses.
            reset = self._server.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
            if not reset.get("success"):
                raise Unavailable(f"{self._server.url} kept the prefixes of {before}")  # noqa: TRY301 as the other failures
        except Unavailable as error:
            more = f"vLLM cannot go back, so its weights may be a mixture of {before} and {name}; it stays paused"
            raise worse(error, more, mixed=True) from error

    def _check_route(self) -> None:
        """Raises InvalidSettings if requests could not be answered: an empty one must be found invalid, and not missing or keyless."""
        try:
            self._server.post("/inference/v1/generate", {})
        except Unavailable as error:
            match error.facts.get("status"):
                case 401 | 403:
                    raise _cannot_follow(self._server.url, error) from error
                case 404:
                    says = f"{self._server.url} has no /inference/v1/generate: start it with --enable-scale-out"
                    raise InvalidSettings(says) from error
                case None:
                    raise
                case _:
                    return

    def _workers(self, method: str, arguments: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        body = {"method": method, "kwargs": dict(arguments or {})}
        answer = self._server.post("/collective_rpc", body).get("results")
        if not isinstance(answer, list) or not answer or not all(isinstance(state, dict) for state in answer):
            raise Unavailable(f"{self._server.url} has no {method}: it was started without our plug-in")
        return answer


def _cannot_follow(url: str, error: Unavailable) -> Unavailable | InvalidSettings:
    """Why a server that answered cannot be followed; the error itself if it did not answer."""
    match error.facts.get("status", ""):
        case None:
            return error
        case 401 | 403:
            says = (
                "refuses this home's engine key: start the server with VLLM_API_KEY set to it, or give this home the server's by "
                "MILLRACE_ENGINE_KEY"
            )
        case 404:
            says = f"has no routes that change weights: start it with VLLM_SERVER_DEV_MODE=1 and {_PLUG_IN}"
        case _:
            says = f"was started without our plug-in: start it with {_PLUG_IN}"
    return InvalidSettings(f"{url} {says}")
