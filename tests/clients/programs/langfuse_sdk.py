"""Langfuse's SDK for Python, of version 5 and of those before, as its users call it."""

from __future__ import annotations

import langfuse
from cases import KEY, case, run_all, same, true
from langfuse import Langfuse
from telemetry import BASE, Said, ask, new_trace, refusal_of

said = Said("langfuse", "opentelemetry", "backoff")
client = Langfuse(public_key="pk-any", secret_key=KEY, base_url=BASE, timeout=60)
TELLS = int(langfuse.__version__.partition(".")[0]) > 4


def flushed() -> None:
    """Send what waits; what the SDK could not send, it logs."""
    client.flush()
    same(said.take(), "")


@case("auth_check()")
def auth_check() -> None:
    true(client.auth_check(), "no project")


@case("create_score: BOOLEAN, about a completion")
def boolean() -> None:
    client.create_score(name="accepted", value=1, data_type="BOOLEAN", trace_id=ask())
    flushed()


@case("create_score: NUMERIC, with a comment and a time")
def numeric() -> None:
    client.create_score(name="stars", value=4.5, trace_id=ask(), comment="a bit long", score_id="stars-1")
    flushed()


@case("create_score: CATEGORICAL")
def categorical() -> None:
    client.create_score(name="thumbs", value="up", data_type="CATEGORICAL", trace_id=ask())
    flushed()


@case("create_score: CORRECTION")
def correction() -> None:
    client.create_score(name="output", value="Hello, Anna.", data_type="CORRECTION", trace_id=ask())
    flushed()


@case("create_score: about a trace, the join key of its request")
def by_trace() -> None:
    trace = new_trace()
    ask(metadata={"join_key": trace})
    client.create_score(name="accepted", value=1, data_type="BOOLEAN", trace_id=trace)
    flushed()


@case("create_score: about a session")
def by_session() -> None:
    ask(metadata={"session_id": "visit-lf"})
    client.create_score(name="accepted", value=1, data_type="BOOLEAN", session_id="visit-lf")
    flushed()


@case("the same score_id again, then with another value")
def again() -> None:
    about = ask()
    for value in (1, 1, 0):
        client.create_score(name="accepted", value=value, data_type="BOOLEAN", trace_id=about, score_id=f"{about}-ok")
    flushed()


@case("observations, and their score")
def observations() -> None:
    with client.start_as_current_observation(as_type="generation", name="chat", model="m") as generation:
        ask(metadata={"join_key": generation.trace_id})
        generation.update(output="Hello.")
        generation.score(name="accepted", value=1, data_type="BOOLEAN")
    flushed()


@case("an unknown name among two scores")
def unknown() -> None:
    for name in ("accepted", "helpfulness"):
        client.create_score(name=name, value=1, data_type="BOOLEAN", trace_id=ask())
    client.flush()
    told = said.take()
    true("no task declares a signal 'helpfulness'" in told if TELLS else told, told)


@case("a score out of range")
def out_of_range() -> None:
    client.create_score(name="stars", value=11, trace_id=ask())
    client.flush()
    told = said.take()
    true("out_of_range" in told if TELLS else told, told)


@case("a wrong secret key")
def wrong_key() -> None:
    Langfuse(public_key="pk-other", secret_key="mr-app-none-none", base_url=BASE).auth_check()  # noqa: S106 no key


if __name__ == "__main__":
    run_all(refusal_of)
