"""Brings an SGLang server to a version in its `source_dir`. In: a number. Out: the server serves it. Waits for: the server.

    POST /pull_weights {local_checkpoint_dir, source_dir, target_version}    while it serves: fetch, patch and verify on its disk
    POST /pause_generation {"mode": "retract"}                               requests in flight go back to the queue
    POST /flush_cache                                                        prefixes never cross versions
    POST /update_weights_from_disk {model_path, weight_version}
    POST /continue_generation {}
    GET  /model_info                                                         does it name the version?

The order is slime's (`update_weight_from_disk_delta.py`, `_reload_engines`). During the pause the server reloads the whole
checkpoint from its disk: `/pull_weights` works like that, and it is why our own engine does not. When a reload fails, SGLang
says it rolls back, but reads the new files again (`weight_updater.py` of 0.5.23): the driver does not rely on it.
"""

from __future__ import annotations

import httpx

from contracts.errors import Unavailable, Unsupported, WeightsRefused
from weights.engines.server import Server, worse

_REFUSED = 400
_NO_ROUTE = 404


class PullWeights:
    """One SGLang server. See the module.

    Args:
        client: see `Server`.
        source_dir: where `weights.engines.sglang_layout` writes, as the server's hosts see it.
        local_checkpoint_dir: a folder on each host's own disk that the server patches.
    """

    def __init__(self, client: httpx.Client, *, source_dir: str, local_checkpoint_dir: str) -> None:
        self._server = Server(client)
        self._source = source_dir
        self._local = local_checkpoint_dir

    def push(self, number: int, label: str) -> None:
        """Make the server serve number `number` of its stream, named `label` (`v7`) in its answers.

        Raises:
            Unavailable: the server is away, or failed after it had begun to load; the message says which, and whether its
                weights may be mixed.
            Unsupported: this SGLang has no `/pull_weights`.
            WeightsRefused: `pull_refused`: it could not fetch, or a check failed; it still serves the old version.
        """
        self._pull(number)
        failure: Unavailable | None = None
        try:
            self._reload(label)
        except Unavailable as error:
            failure = error
        finally:
            stuck = self._server.try_to_resume("/continue_generation", {})
        if failure is not None:
            raise worse(failure, stuck) if stuck else failure
        if stuck:
            raise Unavailable(f"{self._server.url} has loaded {label}; {stuck}", url=self._server.url)
        if (serves := self.weight_version()) != label:
            raise Unavailable(f"{self._server.url} was given {label} and says it serves {serves}: reload it in full")

    def weight_version(self) -> str:
        """The version that the server names; `default` until one was declared. Raises Unavailable."""
        return str(self._server.get("/model_info").get("weight_version"))

    def _pull(self, number: int) -> None:
        body = {"local_checkpoint_dir": self._local, "source_dir": self._source, "target_version": number}
        try:
            self._server.post("/pull_weights", body)
        except Unavailable as error:
            if error.facts["status"] == _NO_ROUTE:
                raise Unsupported(
                    f"{self._server.url} has no /pull_weights; release 0.5.23 has none: run the branch sglang-miles, or slime's patch"
                ) from error
            if error.facts["status"] != _REFUSED:
                raise
            raise WeightsRefused(
                "pull_refused",
                f"{error.message}; it still serves the old version. If its checkpoint is damaged, export_full under the next number",
                **error.facts,
            ) from error

    def _reload(self, label: str) -> None:
        self._server.post("/pause_generation", {"mode": "retract"})
        self._server.post("/flush_cache")
        try:
            self._server.post("/update_weights_from_disk", {"model_path": self._local, "weight_version": label})
        except Unavailable as error:
            more = "its weights may be mixed: push again or restart it, and send it no requests until then"
            raise worse(error, more, mixed=True) from error
