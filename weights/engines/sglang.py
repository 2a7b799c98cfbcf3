"""Brings an SGLang server to a version, by the loader of stock releases. In: a verified file. Out: the server serves it.

    GET  /model_info             weight_version, and the folder that the weights were loaded from
    GET  /server_info            how it was started
    POST /pause_generation       {"mode": "retract"}: running requests go back to the queue with their tokens, new ones wait
    POST /update_weight_version  {"new_version": "v6-to-v7"}: from here on, its weights are no version
    POST /update_weights_from_disk  {"model_path", "load_format", "weight_version": "v7", "flush_cache": true}
    POST /continue_generation    requests go on, and compute their prefix again with the new weights

Read in the wheel of SGLang 0.5.23: `srt/entrypoints/http_server.py`, `srt/managers/io_struct.py`, `srt/managers/scheduler.py`,
`srt/managers/scheduler_components/weight_updater.py`, `srt/model_executor/model_runner_components/weight_updater.py`. Never run:
it needs a GPU. Only fakes of these shapes were tested.

A cache is flushed only if nothing runs, so the pause must be `retract`. An update that fails has the answer 400; SGLang says that it
rolled back, but it reads the new folder again, so what it holds is unknown. It then stays paused under the name `v6-to-v7`, and `push`
writes a whole version again. SGLang always loads whole versions, has no route that says whether it is paused, and reads the file by
itself: what it holds is known only by what it says.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec

from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from weights.engines.held import HeldVersions, ServerFacts, VersionFile
from weights.engines.server import Server, worse

_NOTE = "millrace.json"
_WEIGHTS = "model.safetensors"
_KEYLESS, _NOT_FOUND = (401, 403), 404
_MOST_TOP = 20
_GO_ON = {"torch_empty_cache": False}
_KEPT = 3  # the server may read the folder of the version that it holds again


class _Note(msgspec.Struct):
    """Beside the weights of a version, to know it again."""

    version: int
    root: str


class SglangServer:
    """One SGLang server. See the module, and `EngineDriver`. Not for several threads.

    Args:
        client: see `Server`.
        base: the base policy's folder; its configuration and tokenizer are linked beside each version's weights.
    """

    def __init__(self, client: httpx.Client, base: Path) -> None:
        self._server = Server(client)
        self._base = base
        self._may_be_paused = True  # by a driver before this one

    def facts(self) -> ServerFacts:
        """How it was started.

        Raises:
            Unavailable: it does not answer.
            InvalidSettings: it is no SGLang server of a release that can be followed, or refuses the key.
        """
        try:
            model, started = self._server.get("/model_info"), self._server.get("/server_info")
        except Unavailable as error:
            status = error.facts.get("status")
            if status in _KEYLESS:
                raise InvalidSettings(
                    f"{self._server.url} refuses this home's engine key: start it with --api-key set to it, or give this home the "
                    "server's by MILLRACE_ENGINE_KEY"
                ) from error
            if status == _NOT_FOUND:
                raise InvalidSettings(f"{self._server.url} is no SGLang server: it has no /model_info") from error
            raise
        if "weight_version" not in model:
            raise InvalidSettings(
                f"{self._server.url} runs SGLang {started.get('version')}, which names no weight_version: 0.5.23 or newer is needed"
            )
        return ServerFacts(
            model=str(model.get("model_path")),
            tokenizer=str(model.get("tokenizer_path")),
            dtype=str(started.get("dtype")),
            # After temperature, penalties and bias, and before top_k, top_p and min_p; `SGLANG_RETURN_ORIGINAL_LOGPROB` is not told.
            has_sampled_logprobs=True,
            has_constraints=False,  # it takes no Lark grammar
            has_seeds=bool(started.get("enable_deterministic_inference")),
            num_top_logprobs=_MOST_TOP,
            has_experts=False,  # it reports them without their shape
        )

    def held(self) -> HeldVersions:
        """What it serves. Raises Unavailable."""
        said = self._server.get("/model_info")
        name = str(said.get("weight_version"))
        note = _note_in(Path(str(said.get("model_path"))))
        version, root = (None, None) if note is None else (note.version, note.root)
        return HeldVersions(name, version, root, is_broken="-to-" in name)

    def check(self) -> None:
        """Raises Unavailable if it does not answer."""
        self._server.get("/model_info")

    def stage(self, target: VersionFile, base_root: str | None) -> None:  # noqa: ARG002 whole versions replace anything
        """Make a checkpoint's folder of a version, beside its file."""
        folder = _folder_of(target)
        folder.mkdir(parents=True, exist_ok=True)
        for found in self._base.iterdir():
            if found.is_file() and not found.name.endswith((".safetensors", ".bin", ".index.json")):
                _link(found.resolve(), folder / found.name)
        (folder / _WEIGHTS).unlink(missing_ok=True)
        os.link(target.path, folder / _WEIGHTS)
        (folder / _NOTE).write_bytes(msgspec.json.encode(_Note(target.version, target.root)))
        notes = sorted(folder.parent.glob(f"v*/{_NOTE}"), key=lambda note: note.stat().st_mtime)
        for old in notes[:-_KEPT]:
            shutil.rmtree(old.parent)

    def push(self, target: VersionFile, base: VersionFile | None) -> float:
        """Make the server serve a staged version. Requests in flight go on, with the new weights.

        Raises:
            WeightsRefused: `wrong_base` or `not_staged`; nothing was changed.
            Unavailable: the server is away or failed. With the fact `mixed` it stays paused: push again.
        """
        held, folder = self.held(), _folder_of(target)
        if base is not None and not (held.is_whole and held.root == base.root):
            raise WeightsRefused(
                "wrong_base", f"{self._server.url} holds {held.name} with the root {held.root}, not {base.root}"
            )
        if _note_in(folder) != _Note(target.version, target.root):
            raise WeightsRefused("not_staged", f"{folder} is not v{target.version}")
        paused_at = time.monotonic()
        self._may_be_paused = True
        self._server.post("/pause_generation", {"mode": "retract"})
        before, name = held.name.rpartition("-to-")[2], f"v{target.version}"
        try:
            self._server.post(
                "/update_weight_version", {"new_version": f"{before}-to-{name}", "abort_all_requests": False}
            )
        except Unavailable as error:
            stuck = self._server.try_to_resume("/continue_generation", _GO_ON) if held.is_whole else None
            raise (worse(error, stuck) if stuck else error) from error
        self._load(folder, before, name)
        self.resume()
        seconds = time.monotonic() - paused_at
        after = self.held()
        if (after.name, after.root) != (name, target.root):
            raise Unavailable(
                f"{self._server.url} was given {name} and says it holds {after.name} with the root {after.root}",
                mixed=True,
            )
        return seconds

    def is_paused(self) -> bool:
        """True until this driver let it go on once: SGLang does not say, and to go on twice does no harm."""
        return self._may_be_paused

    def resume(self) -> None:
        """Let it go on. Raises Unavailable."""
        self._server.post("/continue_generation", _GO_ON)
        self._may_be_paused = False

    def _load(self, folder: Path, before: str, name: str) -> None:
        body: dict[str, Any] = {
            "model_path": str(folder), "load_format": "safetensors", "weight_version": name, "flush_cache": True,
            "abort_all_requests": False, "torch_empty_cache": False,
        }  # fmt: skip
        more = f"its weights may be {before}, {name} or a mixture; it stays paused"
        try:
            answer = self._server.post("/update_weights_from_disk", body)
        except Unavailable as error:
            raise worse(error, more, mixed=True) from error
        if answer.get("success") is not True:
            raise Unavailable(f"{self._server.url} did not load {name}: {answer.get('message')}; {more}", mixed=True)


def _folder_of(target: VersionFile) -> Path:
    return target.path.with_suffix("")


def _note_in(folder: Path) -> _Note | None:
    try:
        return msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        return None


def _link(found: Path, link: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(found)
