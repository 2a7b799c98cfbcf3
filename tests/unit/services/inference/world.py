"""A tiny tokenizer, an engine with given answers, and a log that can be stopped."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from contracts.errors import RecordTooLarge, Unavailable
from contracts.event_log import Message
from runtime.log.local import LocalLog

END = "<|end|>"
CONTEXT = 200
TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{%- endif %}
"""


def make_tokenizer() -> Tokenizer:
    """One token for each byte: characters beyond ASCII take several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, "<|system|>", "<|user|>", "<|assistant|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def make_base(folder: Path, template: str = TEMPLATE) -> Path:
    """The files of a base policy that inference reads."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": CONTEXT}))
    return folder


class FakeEngine:
    """Speaks the engine's dialect: each answer is `says`, a token at a time.

    Attributes:
        die_after: the next answer breaks off after so many tokens.
        stays_dead: after that nothing is served any more.
        survives: it breaks off without dying.
        hold_after: answers wait for `go` after so many tokens.
        serving: what /state says.
        slots: arm to version, as /state says it; None: live, and the lowest other version that is resident as candidate.
        refusal: the error with which every request is refused, with status 400.
        full: it has too much to do, and says so.
        mute: requests are read and not answered, as by a socket that outlives its process.
        num_drawable: how many tokens a truncated answer could be drawn from.
        cached: of each answer, how many tokens of the prompt it had computed before; its last number is for all others.
        tells_cached_last: it says so as vLLM does, behind the last token, if asked for the usage.
        tells_version_last: it names the version of its tokens with the last one, as vLLM does.
        labels_base: whatever was asked for, it says version 0, as vLLM does with adapters.
    """

    def __init__(self, says: str, version: int = 3) -> None:
        tokenizer = make_tokenizer()
        [self.end] = tokenizer.encode(END).ids
        self.refusal: dict[str, Any] | None = None
        self.answer: list[int] = [*tokenizer.encode(says).ids, self.end]
        self.version = version
        self.resident = {version}
        self.slots: dict[str, int | None] | None = None
        self.serving = True
        self.mute = self.full = False
        self.num_drawable = 1000
        self.cached: list[int] = []
        self.tells_cached_last = self.tells_version_last = self.labels_base = False
        self.die_after: int | None = None
        self.stays_dead = False
        self.survives = False
        self.dies_by_event = False
        self.death_code = "engine_restarted"
        self.hold_after: int | None = None
        self.go = threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.num_closed = 0
        self.num_starts = 1
        self.app = FastAPI()
        self.app.get("/state")(self.health)
        self.app.get("/health")(self.health)
        self.app.post("/inference/v1/generate")(self.generate)

    async def health(self) -> Response:
        others = self.resident - {self.version}
        held = self.slots or {"live": self.version, "candidate": min(others, default=None)}
        content = {"engine": "fake/1", "dtype": "float32", "instance": f"start {self.num_starts}", "versions": held}
        status, code = ("serving", 200) if self.serving else ("restarting", 503)
        return JSONResponse({"status": status, **content}, status_code=code)

    async def generate(self, request: Request) -> Response:
        asked = await request.json()
        if not self.serving:
            return _error(503, "unavailable", "restarting")
        version = asked.get("model", "").partition("@v")[2]
        if version and int(version) not in self.resident:
            return _error(404, "version_not_resident", f"{asked['model']} is not resident")
        self.requests.append(asked)
        if self.full:
            return _error(429, "engine_overloaded", "full")
        if self.refusal is not None:
            return JSONResponse({"error": self.refusal}, status_code=400)
        while self.mute:
            await asyncio.sleep(0.005)
            if await request.is_disconnected():
                self.num_closed += 1
                return Response()
        return StreamingResponse(self._stream(asked), media_type="text/event-stream")

    async def _stream(self, asked: dict[str, Any]) -> AsyncIterator[str]:
        offset = asked.get("num_made", 0)
        number = next(number for number, request in enumerate(self.requests) if request is asked)
        cached = self.cached[min(number, len(self.cached) - 1)] if self.cached else None
        usage = {"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}
        told_first = usage if cached is not None and not self.tells_cached_last else {}
        named = asked.get("model", "").partition("@v")[2]
        rest = self.answer[offset:][: asked["sampling_params"]["max_tokens"]]
        try:
            for place, token_id in enumerate(rest):
                if self.die_after == place:
                    self.die_after = None
                    self.serving = not self.stays_dead
                    self.num_starts += not self.survives
                    if not self.dies_by_event:
                        raise ConnectionResetError
                    error = {"message": "manager died", "code": self.death_code}
                    yield f"data: {json.dumps({'error': error})}\n\n"
                    return
                while self.hold_after == place and not self.go.is_set():  # noqa: ASYNC110 tests set it from their thread
                    await asyncio.sleep(0.005)
                tells_version = place == (len(rest) - 1 if self.tells_version_last else 0)
                spans = [(0, 0 if self.labels_base else int(named or self.version))] if tells_version else []
                num_top = min(asked["sampling_params"]["logprobs"], self.num_drawable)
                more = told_first if place == 0 else {}
                yield event_of(token_id, spans, self._reason(place, rest), num_top, **more)
            if self.tells_cached_last and asked.get("stream_options") == {"include_usage": True}:
                yield f"data: {json.dumps({'choices': []} | (usage if cached is not None else {}))}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.num_closed += 1

    def _reason(self, place: int, rest: Sequence[int]) -> str | None:
        if place + 1 < len(rest):
            return None
        return "stop" if rest[-1] == self.end else "length"


def event_of(token_id: int, spans: Sequence[tuple[int, int]], reason: str | None, num_top: int = 0, **more: Any) -> str:
    """One token as our engine sends it; `spans`: start and version of those that begin; `more` fields of the event."""
    top = [{"token_id": token_id + place, "logprob": -0.5 - place} for place in range(num_top)]
    logprobs = {"content": [{"token_id": token_id, "logprob": -0.5, "top_logprobs": top}]}
    choice: dict[str, Any] = {"index": 0, "token_ids": [token_id], "logprobs": logprobs, "finish_reason": reason}
    if spans:
        choice["weight_versions"] = [{"version": f"v{number}", "start": at, "end": at + 1} for at, number in spans]
    content: dict[str, Any] = {"choices": [choice], **more}
    if reason:
        content["system"] = {"engine": "fake/1", "dtype": "float32"}
    return f"data: {json.dumps(content)}\n\n"


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": code, "param": "model"}}, status_code=status)


class Stage:
    """An address where one engine after another may serve."""

    url: str
    engine: FakeEngine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the engine of now."""
        if scope["type"] == "http":
            await self.engine.app(scope, receive, send)


class StubbornLog(LocalLog):
    """A local log whose appends wait while `open` is clear, fail while `full` is set, and take nothing above `largest` bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open = threading.Event()
        self.open.set()
        self.full = threading.Event()
        self.largest = 10**9
        self.num_appends = 0
        self.waiting = threading.Event()

    def append(self, messages: Sequence[Message]) -> None:
        self.waiting.set()
        self.open.wait()
        if self.full.is_set():
            raise Unavailable("the log cannot be written (disk full); free disk space")
        if any(len(message.value) > self.largest for message in messages):
            raise RecordTooLarge("the log takes no record of this size")
        self.num_appends += 1
        super().append(messages)
