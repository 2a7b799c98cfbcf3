"""What the programs share: each runs in an environment of its own, without Millrace, and prints one line of JSON per feature.

In: MILLRACE_URL (ends in /v1), MILLRACE_MODEL, MILLRACE_KEY, and MILLRACE_SPENT_KEY, which a program may use up.
Out: {"feature", "result", "message"}; `result` is "works", "refused: STATUS CODE PARAM", or "failed: why".
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

URL, MODEL = os.environ["MILLRACE_URL"], os.environ["MILLRACE_MODEL"]
KEY, SPENT_KEY = os.environ["MILLRACE_KEY"], os.environ["MILLRACE_SPENT_KEY"]
REQUESTS_PER_MINUTE = int(os.environ["MILLRACE_REQUESTS_PER_MINUTE"])
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": PARAMETERS},
}
EITHER_CITY = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {**PARAMETERS, "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}},
    },
}
"""Its arguments are short, whatever the policy would say."""
BOOKING_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "party": {"type": "integer"}},
    "required": ["name", "party"],
    "additionalProperties": False,
}
BIASES = ({"40": 100}, {"41": 100})
"""Each makes the policy repeat one token, so that a bias shows in any client."""
THROUGH_PROXY = "MILLRACE_THROUGH_PROXY" in os.environ
"""Another server stands between the client and Millrace."""
_AT_A_TIME = 16
CASES: dict[str, Callable[[], None]] = {}


class Refused(Exception):
    """The server refused a request; made from a client's own exception."""

    def __init__(self, status: int | str, code: str, param: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.message = status, code, param, message


def case(feature: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register what shows that a feature works: it returns, or raises what the client raises for a refusal."""

    def keep(run: Callable[[], None]) -> Callable[[], None]:
        CASES[feature] = run
        return run

    return keep


def same(seen: Any, wanted: Any) -> None:
    """Fail unless equal."""
    if seen != wanted:
        raise AssertionError(f"saw {seen!r}, wanted {wanted!r}")


def true(condition: object, what: str) -> None:
    """Fail unless the condition holds."""
    if not condition:
        raise AssertionError(what)


def is_biased(first: str, second: str) -> None:
    """Fail unless each is one character of its own, repeated."""
    same([len(first), len(second)], [3, 3])
    same([len(set(first)), len(set(second)), len(set(first + second))], [1, 1, 2])


def reach_the_limit(send: Callable[[], object], refused: type[Exception]) -> None:
    """Send until a request is refused. Many at a time: one after another may be slower than the limit."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for _ in range(10 * REQUESTS_PER_MINUTE // _AT_A_TIME):
            sent = [pool.submit(send) for _ in range(_AT_A_TIME)]
            errors = [error for one in sent if (error := one.exception()) is not None]
            if errors:
                true(isinstance(errors[0], refused), repr(errors[0]))
                return
    raise AssertionError("the limit is never reached")


def user(content: Any) -> list[dict[str, Any]]:
    """One message of a user."""
    return [{"role": "user", "content": content}]


def run_all(refusal_of: Callable[[Exception], Refused | None]) -> None:
    """Run every case, or those named on the command line; print what came of each."""
    for feature, run in CASES.items():
        if sys.argv[1:] and feature not in sys.argv[1:]:
            continue
        message = ""
        try:
            run()
            result = "works"
        except Exception as error:  # noqa: BLE001 each case is judged by itself
            refused = error if isinstance(error, Refused) else refusal_of(error)
            if refused is None:
                result, message = f"failed: {type(error).__name__}: {error}"[:600], traceback.format_exc()
            else:
                result = f"refused: {refused.status} {refused.code} {refused.param}".rstrip()
                message = refused.message
        sys.stdout.write(json.dumps({"feature": feature, "result": result, "message": message}) + "\n")
