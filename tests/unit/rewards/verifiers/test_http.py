from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.grader import Grader
from rewards.verifiers import http
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


class RewardServer:
    """A real one, on loopback, that answers what a test wants."""

    def __init__(self) -> None:
        self.reply: Reply = lambda body: (200, {"rewards": [1.0] * len(body["completions"])})
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.pause_seconds = 0.0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                owner.bodies.append(body)
                owner.headers.append({key.lower(): value for key, value in self.headers.items()})
                time.sleep(owner.pause_seconds)
                status, answer = owner.reply(body)
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rewards"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[RewardServer]:
    server = RewardServer()
    yield server
    server.close()


def build(url: str, deadline: float = 5.0, **config: Any) -> BatchVerifier:
    return http.build({"url": url, "pause_seconds": 0.01, **config}, Context(deadline))


def ask(verifier: BatchVerifier, *texts: str, **metadata: str) -> list[Check]:
    message = {"role": "user", "content": "say"}
    return list(verifier.check_all([Answer(text, metadata, [message]) for text in texts]))


def test_it_posts_columns_and_reads_rewards(server: RewardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TOKEN", "Bearer secret")
    server.reply = lambda _: (200, {"rewards": [3, None], "extra": 1})
    verifier = build(
        server.url, headers_env={"Authorization": "REWARD_TOKEN"}, reference_column="solution", maximum=4.0
    )
    first, second = ask(verifier, "a", "b", reference="5", topic="sums")
    assert (first.value, second.value, second.status) == (0.75, None, "unlabelled")
    assert server.bodies == [
        {
            "prompts": [[{"role": "user", "content": "say"}]] * 2,
            "completions": [[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]],
            "reference": ["5", "5"],
            "solution": ["5", "5"],
            "topic": ["sums", "sums"],
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer secret"


def test_a_server_may_answer_bools(server: RewardServer) -> None:
    server.reply = lambda _: (200, {"rewards": [True, False]})
    assert [check.value for check in ask(build(server.url), "a", "b")] == [1.0, 0.0]


def test_many_answers_go_in_batches(server: RewardServer) -> None:
    assert [check.value for check in ask(build(server.url, batch_size=2), *"abcde")] == [1.0] * 5
    assert [len(body["completions"]) for body in server.bodies] == [2, 2, 1]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(server: RewardServer, status: int) -> None:
    replies = iter([(status, {}), (status, {}), (200, {"rewards": [1.0]})])
    server.reply = lambda _: next(replies)
    assert [check.value for check in ask(build(server.url), "a")] == [1.0]
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("reply", "num_asked", "says"),
    [
        ((503, {"error": "busy"}), 3, "answered 503"),
        ((404, {}), 1, "answered 404"),
        ((302, {}), 1, "answered 302"),
        ((200, b"<html>"), 1, "not JSON"),
        ((200, [1.0, 1.0]), 1, "rewards"),
        ((200, {"reward": 1.0}), 1, "rewards"),
        ((200, {"rewards": 1.0}), 1, "float for 2 answers"),
        ((200, {"rewards": [1.0]}), 1, "1 rewards for 2 answers"),
        ((200, {"rewards": [float("nan"), float("nan")]}), 1, "it answered nan"),
        ((200, {"rewards": [float("inf"), float("inf")]}), 1, "it answered inf"),
        ((200, {"rewards": [[1], "1"]}), 1, "not a number"),
        ((200, {"rewards": [1.5, -0.5]}), 1, "set minimum and maximum"),
        ((200, b" " * (9 << 20)), 1, "more than"),
    ],
)
def test_what_is_no_list_of_rewards_is_our_fault(
    server: RewardServer, reply: tuple[int, Any], num_asked: int, says: str
) -> None:
    server.reply = lambda _: reply
    grader = Grader("h", "component", 1.0, "h", is_slow=True, check_all=build(server.url).check_all)
    for score in grader.score_all([Answer("a"), Answer("b")]):
        assert (score.value, score.status, score.fault) == (None, "unscored", "infra")
        assert says in score.reason
    assert len(server.bodies) == num_asked


def test_an_answer_that_the_server_refuses_takes_no_other_along(server: RewardServer) -> None:
    def picky(body: dict[str, Any]) -> tuple[int, Any]:
        said = [one[0]["content"] for one in body["completions"]]
        return (422, {}) if "bad" in said else (200, {"rewards": [1.0] * len(said)})

    server.reply = picky
    first, second, third = ask(build(server.url), "a", "bad", "c")
    assert (first.value, third.value) == (1.0, 1.0)
    assert (second.value, second.fault) == (None, "infra")


def test_a_server_that_hangs_or_is_not_there_costs_its_deadlines(server: RewardServer) -> None:
    server.pause_seconds = 0.5
    (check,) = ask(build(server.url, 0.1, retries=1), "a")
    assert (check.value, check.fault) == (None, "infra")
    assert "within 0.1 s" in check.reason
    server.close()
    (check,) = ask(build("http://127.0.0.1:9/", 0.5), "a")
    assert (check.value, check.fault) == (None, "infra")
    assert "ConnectError" in check.reason


@pytest.mark.parametrize(
    ("config", "param", "says"),
    [
        ({"url": "localhost:80"}, "url", "match pattern"),
        (
            {"url": "http://localhost/", "headers_env": {"Authorization": "NO_SUCH_TOKEN"}},
            "headers_env",
            "NO_SUCH_TOKEN",
        ),
        ({"url": "http://localhost/", "retries": 9}, "retries", "less than or equal to 2"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidTask, match=says) as caught:
        http.build(config)
    assert caught.value.param == param
