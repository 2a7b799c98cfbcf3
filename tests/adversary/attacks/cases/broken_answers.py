"""What a broken or hostile engine may say, and what the unmodified openai SDK must make of it.

Each case is the answer to one `POST /inference/v1/generate`, byte for byte, behind the head of a stream unless it brings its own.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import openai

Ending = Literal["whole", "cut", "reset", "silent", "dripping"]
FAILED, SILENT = "engine_failed", "engine_silent"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN_LOGPROB = -0.5
DONE = b"data: [DONE]\n\n"


class BrokenAnswer(NamedTuple):
    """See the module.

    Attributes:
        says: parts of the body, each sent as a chunk; with `head` None, everything that is sent.
        ending: what follows: the end of the answer, a closed connection, one that is closed without an answer, nothing at
            all, or `drips` sent endlessly.
        raises: by the SDK, before the first token; after it, a stream raises openai.APIError.
        code: of the error.
        match: words of its message.
        num_tokens: good ones before the trouble: they are logged, as an answer that failed.
        retry_after: the header that the client gets, if it matters.
        num_asked: how often the engine may have been asked; 0: more than once.
    """

    name: str
    says: tuple[bytes, ...] = ()
    ending: Ending = "whole"
    raises: type[openai.APIStatusError] = openai.InternalServerError
    code: str = FAILED
    match: str = ""
    num_tokens: int = 0
    head: bytes | None = HEAD
    retry_after: str | None = None
    num_asked: int = 1
    drips: bytes = b": still here\n\n"


def event(content: object) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def choice(**fields: Any) -> bytes:
    """An event with one choice, made by version 1."""
    versions = [{"version": "v1", "start": 0, "end": 1}]
    return event({"choices": [{"index": 0, "finish_reason": None, "weight_versions": versions, **fields}]})


def token(token_id: int = 40, logprob: Any = TOKEN_LOGPROB, **fields: Any) -> bytes:
    """An event with one token."""
    return choice(token_ids=[token_id], logprobs=logprobs((token_id, logprob)), **fields)


def logprobs(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    """Log-probs of tokens, as pairs of id and value."""
    return {"content": [{"token_id": token_id, "logprob": value, "top_logprobs": []} for token_id, value in pairs]}


def status(number: int, body: bytes | str = b"", headers: str = "") -> bytes:
    """A whole answer that is no stream."""
    content = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {number} X\r\n{headers}content-length: {len(content)}\r\n\r\n".encode() + content


def refusal(number: int, code: str, message: str = "said the engine", headers: str = "") -> bytes:
    """A whole answer with an error object."""
    return status(number, json.dumps({"error": {"message": message, "code": code, "param": None}}), headers)


GOOD = BrokenAnswer("a whole answer", (token(), token(), token(finish_reason="stop"), DONE))
_SAID = (token(), token())

_STATUSES = [
    BrokenAnswer("429 with Retry-After", (refusal(429, "engine_overloaded", headers="retry-after: 7\r\n"),),
         raises=openai.RateLimitError, code="engine_overloaded", match="try again in 7 s", retry_after="7"),
    BrokenAnswer("429 of a proxy", (status(429, "<html>slow down</html>"),),
         raises=openai.RateLimitError, code="engine_overloaded", match="slow down", retry_after="1"),
    BrokenAnswer("429 for a year", (status(429, headers="Retry-After: 31536000\r\n"),),
         raises=openai.RateLimitError, code="engine_overloaded", retry_after="60"),
    BrokenAnswer("429 until a date", (status(429, headers="retry-after: Sun, 22 Nov 2026 08:00:00 GMT\r\n"),),
         raises=openai.RateLimitError, code="engine_overloaded", retry_after="1"),
    BrokenAnswer("400 that we know", (refusal(400, "context_length_exceeded", "too long"),),
         raises=openai.BadRequestError, code="context_length_exceeded", match="too long"),
    BrokenAnswer("400 of a proxy", (status(400, "<html>bad</html>"),),
         raises=openai.BadRequestError, code="invalid_request", match="bad"),
    BrokenAnswer("400 with an error that is only a text", (status(400, '{"error": "boom"}'),),
         raises=openai.BadRequestError, code="invalid_request", match="boom"),
    BrokenAnswer("404 of a version", (refusal(404, "version_not_resident", "not here"),),
         raises=openai.NotFoundError, code="version_not_resident", match="not here"),
    BrokenAnswer("404 of another server", (status(404, "<html>no such page</html>"),), match="answered 404: <html>no such page"),
    BrokenAnswer("401", (refusal(401, "invalid_api_key"),), match="MILLRACE_ENGINE_KEY"),
    BrokenAnswer("403", (refusal(403, "forbidden"),), match="refuses this process's key"),
    BrokenAnswer("413", (status(413, "large"),), raises=openai.BadRequestError, code="invalid_request", match="large"),
    BrokenAnswer("418", (status(418, "teapot"),), match="answered 418: teapot"),
    BrokenAnswer("301", (status(301, headers="location: http://127.0.0.1:1/\r\n"),), match="answered 301"),
    BrokenAnswer("204", (b"HTTP/1.1 204 No Content\r\n\r\n",), match="answered 204"),
    BrokenAnswer("500 that says why", (refusal(500, "internal_error", "CUDA is out of memory"),), match="CUDA is out of memory"),
    BrokenAnswer("500 that says too much", (status(500, b"x" * 300_000),), match="answered 500"),
    BrokenAnswer("500 that stops in the middle", (b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\nhalf",), "cut", match="answered 500"),
    BrokenAnswer("502 of a proxy", (status(502, "<html>bad gateway</html>"),), match="bad gateway"),
    BrokenAnswer("503 of a proxy", (status(503, "busy"),), match="answered 503: busy"),
    BrokenAnswer("504 of a proxy", (status(504, "late"),), match="answered 504: late"),
    BrokenAnswer("503 of an engine that loads", (refusal(503, "unavailable", "still loading"),),
         code="unavailable", match="still loading", retry_after="1", num_asked=0),
]  # fmt: skip
_NO_ANSWERS = [
    BrokenAnswer("no choices", (event({"choices": []}), DONE), match="ended a stream before its answer"),
    BrokenAnswer(
        "no choices, with usage", (event({"choices": [], "usage": {"total_tokens": 9}}),), match="ended a stream"
    ),
    BrokenAnswer("an empty stream", (), match="ended a stream"),
    BrokenAnswer("nothing but [DONE]", (DONE,), match="ended a stream"),
    BrokenAnswer("a role alone", (choice(delta={"role": "assistant"}), DONE), match="ended a stream"),
    BrokenAnswer("a role, then cut", (choice(delta={"role": "assistant"}),), "cut", match="ended an answer early"),
    BrokenAnswer("an end without a token", (choice(text="", finish_reason="stop"), DONE), match="without a token"),
    BrokenAnswer("an end that is no end", (choice(finish_reason="tired"), DONE), match="tired"),
    BrokenAnswer("aborted every time", (choice(finish_reason="abort"), DONE), match="aborted the request", num_asked=3),
    BrokenAnswer(
        "a chat answer",
        (choice(delta={"content": "Hi"}), choice(delta={}, finish_reason="stop")),
        match="without a token",
    ),
]
_TOKENS = [
    BrokenAnswer("no log-probs", (choice(token_ids=[40]),), match="1 token ids with 0 log-probs"),
    BrokenAnswer("null log-probs", (choice(token_ids=[40], logprobs=None),), match="1 token ids with 0 log-probs"),
    BrokenAnswer("a null log-prob", (token(logprob=None),), match=r"Expected `float`, got `null`"),
    BrokenAnswer("a log-prob in words", (token(logprob="-0.5"),), match="got `str`"),
    BrokenAnswer("a log-prob above 0", (token(logprob=3.0),), match=r"<= 0\.01"),
    BrokenAnswer("a log-prob that is no number", (token(logprob=float("nan")),), match="malformed"),
    BrokenAnswer("a log-prob without end", (b'data: {"choices": [{"token_ids": [4], "logprobs": {"content": [{"token_id": 4, "logprob": -1e999}]}}]}\n\n',),
         match="out of range"),
    BrokenAnswer("a log-prob that no float32 holds", (token(logprob=-1e300),), match=r"> -9999\.0"),
    BrokenAnswer("more ids than log-probs", (choice(token_ids=[40, 41], logprobs=logprobs((40, -0.5))),), match="2 token ids with 1"),
    BrokenAnswer("more log-probs than ids", (choice(token_ids=[], logprobs=logprobs((40, -0.5))),), match="0 token ids with 1"),
    BrokenAnswer("text without ids", (choice(text="Hello"),), match="and text; each token needs its id"),
    BrokenAnswer("an id below 0", (token(-1),), match=">= 0"),
    BrokenAnswer("an id beyond 31 bits", (token(2**31),), match="<= 2147483647"),
    BrokenAnswer("an id that is not a whole number", (token(0.5),), match="Expected `int`, got `float`"),  # type: ignore[arg-type] # on purpose
    BrokenAnswer("a place below 0", (choice(weight_versions=[{"version": "v1", "start": -1}]),), match="versions of tokens that are not valid"),
    BrokenAnswer("versions in disorder", (choice(weight_versions=[{"version": "v1", "start": 5}, {"version": "v2", "start": 2}]),),
         match="versions of tokens that are not valid"),
    BrokenAnswer("a version without a name", (choice(weight_versions=[{"version": 1, "start": 0}]),), match="Expected `str`, got `int`"),
    BrokenAnswer("another version than before", (token(), token(weight_versions=[{"version": "v2", "start": 0}])),
         match="v2 for token 0, and another version before", num_tokens=1),
    BrokenAnswer("log-probs of another token", (choice(token_ids=[40], logprobs=logprobs((41, -0.5))),), match="other tokens than it sampled"),
    BrokenAnswer("vLLM's number for no log-prob", (token(logprob=-9999.0),), match=r"> -9999\.0"),
    BrokenAnswer("experts that are no array", (token(routed_experts="AAAA"),), match="experts that cannot be read"),
    BrokenAnswer("two choices", (event({"choices": [{}, {}]}),), match="2 choices to a request for one"),
    BrokenAnswer("more tokens than asked for", tuple(token() for _ in range(40)), match="more than the 32 tokens", num_tokens=32),
]  # fmt: skip
_SYNTAX = [
    BrokenAnswer("malformed JSON", (b"data: {'choices'}\n\n",), match="cannot be used"),
    BrokenAnswer("half an event", (b'data: {"choices": [{"tok\n\n',), match="cannot be used"),
    BrokenAnswer("an event that is null", (b"data: null\n\n",), match="cannot be used"),
    BrokenAnswer("an event that is a list", (b"data: []\n\n",), match="cannot be used"),
    BrokenAnswer("an event nested deep", (b'data: {"choices": ' + b"[" * 100_000 + b"\n\n",), match="cannot be used"),
    BrokenAnswer("an event that is no UTF-8", (b'data: {"choices": [{"text": "\xff"}]}\n\n',), match="cannot be used"),
    BrokenAnswer("an event with an error in words", (b'data: {"error": "boom"}\n\n',), match="cannot be used"),
    BrokenAnswer("lines that are no events", (b"Internal Server Error\n",), match="not an event: Internal Server Error"),
    BrokenAnswer("JSON instead of events", (b'{"choices": []}\n',), match="not an event"),
    BrokenAnswer("another protocol", (b"SSH-2.0-OpenSSH_9.6\r\n",), "cut", match="not HTTP", head=None),
    BrokenAnswer("a negative length", (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",), "cut", match="not HTTP", head=None),
    BrokenAnswer("chunks without a valid size", (HEAD + b"zz\r\n",), "cut", match="not HTTP", head=None),
    BrokenAnswer("an error event", (event({"error": {"message": "the pump is dry", "code": 500}}),), match="the pump is dry"),
    BrokenAnswer("a request lost every time", (event({"error": {"message": "died", "code": "engine_restarted"}}),),
         match="lost this request 3 times", num_asked=3),
]  # fmt: skip
_CUTS = [
    BrokenAnswer("closed without an answer", ending="reset", match="ended an answer early"),
    BrokenAnswer("cut before the first token", ending="cut", match="ended an answer early"),
    BrokenAnswer("silent before its status", head=None, ending="silent", code=SILENT, match="did not accept the request|was silent"),
    BrokenAnswer("silent before the first token", ending="silent", code=SILENT, match="was not sent again"),
    BrokenAnswer("headers without end", (HEAD[:-2],), "dripping", code=SILENT, match="did not accept the request", drips=b"x: y\r\n"),
    BrokenAnswer("comments without end", ending="dripping", code=SILENT, match="sent no token"),
    BrokenAnswer("empty choices without end", ending="dripping", code=SILENT, match="sent no token", drips=event({"choices": []})),
    BrokenAnswer("roles without end", ending="dripping", code=SILENT, match="sent no token", drips=choice(delta={"role": "assistant"})),
    BrokenAnswer("a line without end", ending="dripping", code=SILENT, match="sent no token", drips=b"data"),
]  # fmt: skip
_TROUBLES: list[tuple[str, tuple[bytes, ...], Ending, str, str, bytes]] = [
    ("cut", (), "cut", FAILED, "ended an answer early", b""),
    ("the end", (), "whole", FAILED, "ended a stream", b""),
    ("[DONE]", (DONE,), "whole", FAILED, "ended a stream", b""),
    ("silent", (), "silent", SILENT, "was silent|sent no token", b""),
    ("comments without end", (), "dripping", SILENT, "sent no token", b": x\n\n"),
    ("a null log-prob", (token(logprob=None),), "whole", FAILED, "got `null`", b""),
    ("no log-probs", (choice(token_ids=[41]),), "whole", FAILED, "1 token ids with 0", b""),
    ("a wrong number of them", (choice(token_ids=[1, 2], logprobs=logprobs((1, -1))),), "whole", FAILED, "2 token", b""),
    ("malformed JSON", (b"data: {]\n\n",), "whole", FAILED, "cannot be used", b""),
    ("malformed events", (b"oops\n\n",), "whole", FAILED, "not an event", b""),
    ("an error event", (event({"error": {"message": "dry"}}),), "whole", FAILED, "dry", b""),
]  # fmt: skip
_AFTER_TOKENS = [
    BrokenAnswer(f"tokens, then {name}", _SAID + says, ending, code=code, match=match, num_tokens=2, drips=drips)
    for name, says, ending, code, match, drips in _TROUBLES
]

CASES: tuple[BrokenAnswer, ...] = tuple(
    case._replace(head=None) if case.says and case.says[0].startswith(b"HTTP/") else case
    for case in (*_STATUSES, *_NO_ANSWERS, *_TOKENS, *_SYNTAX, *_CUTS, *_AFTER_TOKENS)
)
