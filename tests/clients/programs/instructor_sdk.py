"""instructor over the openai SDK, as its users call it."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from cases import KEY, MODEL, URL, Refused, case, run_all, same, true, user
from pydantic import BaseModel

plain_client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
ASKED = user("Book a table for four, Anna.")


class Booking(BaseModel):
    """A booking."""

    name: str
    party: int


BOOKED = {"name": "Anna", "party": 4}


def refusal_of(error: Exception | None) -> Refused | None:
    """It wraps the openai SDK's exceptions."""
    while error is not None and not isinstance(error, openai.APIStatusError):
        last = getattr(error, "last_attempt", None)
        error = (
            last.exception()
            if last is not None
            else error.__cause__
            if isinstance(error.__cause__, Exception)
            else None
        )
    if error is None:
        return None
    return Refused(error.status_code, error.code or "", error.param or "", error.message)


def client(mode: Any) -> Any:
    """One of its clients."""
    return instructor.from_openai(plain_client, mode=mode)


def create(mode: Any, **options: Any) -> Any:
    """A booking."""
    booked = client(mode).chat.completions.create(
        **{"model": MODEL, "messages": ASKED, "response_model": Booking, "max_retries": 0, **options}
    )
    return booked.model_dump()


@case("Mode.TOOLS")
def tools() -> None:
    same(create(instructor.Mode.TOOLS), BOOKED)


@case("Mode.TOOLS_STRICT")
def tools_strict() -> None:
    same(create(instructor.Mode.TOOLS_STRICT), BOOKED)


@case("Mode.JSON")
def json_mode() -> None:
    same(create(instructor.Mode.JSON), BOOKED)


@case("Mode.MD_JSON")
def md_json() -> None:
    same(create(instructor.Mode.MD_JSON), BOOKED)


@case("Mode.JSON_SCHEMA")
def json_schema() -> None:
    same(create(instructor.Mode.JSON_SCHEMA), BOOKED)


@case("with the completion")
def with_completion() -> None:
    booked, answer = client(instructor.Mode.TOOLS).chat.completions.create_with_completion(
        model=MODEL, messages=ASKED, response_model=Booking, max_retries=0
    )
    same(booked.model_dump(), BOOKED)
    true(answer.usage.completion_tokens > 0, "usage")


@case("partial objects, streamed")
def partial() -> None:
    made = client(instructor.Mode.TOOLS).chat.completions.create_partial(
        model=MODEL, messages=ASKED, response_model=Booking, max_retries=0
    )
    seen = list(made)
    true(len(seen) > 2, "the object grows")
    same(seen[-1].model_dump(), BOOKED)


@case("unknown field")
def unknown() -> None:
    create(instructor.Mode.TOOLS, extra_body={"max_token": 3})


@case("wrong key")
def wrong_key() -> None:
    made = instructor.from_openai(plain_client.with_options(api_key="sk-wrong"), mode=instructor.Mode.TOOLS)
    made.chat.completions.create(model=MODEL, messages=ASKED, response_model=Booking, max_retries=0)


if __name__ == "__main__":
    run_all(refusal_of)
