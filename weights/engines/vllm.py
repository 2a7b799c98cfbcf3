"""Brings a vLLM server from one version to the next. In: two numbers. Out: the server serves the second. Waits for: the server.

    GET  /weight_info                                           must name the base
    POST /init_weight_transfer_engine {"init_info": {}}         once
    POST /pause?mode=keep&clear_cache=true                      requests in flight wait; prefixes never cross versions
    POST /start_weight_update
    POST /update_weight_version {"new_version": "v6-to-v7"}     from here to finish, its weights are no version
    POST /update_weights {"update_info": {policy, version, base_version, store}}
    POST /finish_weight_update {"weight_version": "v7"}
    POST /resume
    GET  /weight_info                                           must name the version

The routes exist with `VLLM_SERVER_DEV_MODE=1` (vllm-project/vllm `vllm/entrypoints/serve/dev/rlhf/api_router.py`); the weights are
written by the plug-in `policy/vllm_engine.py`. vLLM cannot roll back: if it fails after it began to write, its weights may
be mixed. It then keeps the name `v6-to-v7`, even if this process is killed, so that no further change is applied on top and
no token is labelled with a version that did not make it.
"""

from __future__ import annotations

import httpx

from contracts.errors import Unavailable, WeightsRefused
from weights.engines.server import Server, worse


class VllmServer:
    """One vLLM server. See the module.

    Args:
        client: see `Server`.
        policy: whose versions it serves.
        store: where its workers read versions from: a folder they see or `s3://bucket/prefix`; `policy.vllm_engine.make_loader`.
    """

    def __init__(self, client: httpx.Client, *, policy: str, store: str) -> None:
        self._server = Server(client)
        self._policy = policy
        self._store = store
        self._initialised = False

    def weight_version(self) -> str:
        """The version that the server names; `default` until one was declared. Raises Unavailable."""
        return str(self._server.get("/weight_info").get("weight_version"))

    def declare(self, version: int) -> None:
        """Tell a server that was just started, or reloaded in full, which version it has. Raises Unavailable."""
        self._server.post("/update_weight_version", {"new_version": f"v{version}"})

    def push(self, version: int, base_version: int) -> None:
        """Make the server serve `version`; it must hold `base_version`. Requests in flight go on.

        Raises:
            Unavailable: the server is away or failed. With the fact `mixed` it has to be reloaded in full.
            WeightsRefused: `wrong_base`: it holds another version; nothing was changed.
        """
        if (holds := self.weight_version()) != f"v{base_version}":
            raise WeightsRefused(
                "wrong_base",
                f"{self._server.url} holds {holds}, the change is for v{base_version}: push from there; if it was just "
                "started or is mixed, load a full version and declare it",
                holds=holds,
            )
        if not self._initialised:
            self._server.post("/init_weight_transfer_engine", {"init_info": {}})
            self._initialised = True
        self._while_paused(version, base_version)
        if (holds := self.weight_version()) != f"v{version}":
            raise Unavailable(
                f"{self._server.url} was given v{version} and says it holds {holds}: reload it in full", mixed=True
            )

    def _while_paused(self, version: int, base_version: int) -> None:
        failure: Unavailable | None = None
        try:
            self._server.post("/pause", params={"mode": "keep", "clear_cache": "true"})
            self._server.post("/start_weight_update")
            self._update(version, base_version)
        except Unavailable as error:
            failure = error
        finally:
            stuck = self._server.try_to_resume("/resume")
        if failure is not None:
            raise worse(failure, stuck) if stuck else failure
        if stuck:
            raise Unavailable(f"{self._server.url} holds v{version}; {stuck}", url=self._server.url)

    def _update(self, version: int, base_version: int) -> None:
        self._server.post("/update_weight_version", {"new_version": f"v{base_version}-to-v{version}"})
        update_info = {
            "policy": self._policy,
            "version": version,
            "base_version": base_version,
            "store": self._store,
        }
        try:
            self._server.post("/update_weights", {"update_info": update_info})
            self._server.post("/finish_weight_update", {"weight_version": f"v{version}"})
        except Unavailable as error:
            more = (
                f"vLLM cannot go back, so its weights may be a mixture of v{base_version} and v{version}: send it no "
                "requests, load a full version and declare it"
            )
            raise worse(error, more, mixed=True) from error
