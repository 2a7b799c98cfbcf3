"""The Generations pages. Transactions begin and end here."""

from __future__ import annotations

import datetime as dt
import math
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, StringConstraints

from contracts.errors import InvalidValue, NotFound
from contracts.ledger import GENERATION_STATES, find_answer
from contracts.record_checks import MAX_ID, MAX_INT32, is_completion_id
from contracts.records import unpack_floats, unpack_ids
from services.dashboard.generations import detail
from services.dashboard.generations.queries import Cursor, Search, find_page
from services.dashboard.signin.access import OperatorReader
from services.dashboard.signin.pages import PageRoute, render

router = APIRouter(prefix="/generations", route_class=PageRoute)
PURPOSES = {
    "user": "Users' answers", "imported": "Imported", "sentinel": "Sentinels", "shadow": "Shadow answers", "rollout": "Rollouts",
    "all": "All",
}  # fmt: skip
_FORM_TIME = "%Y-%m-%dT%H:%M"

Text = Annotated[str, StringConstraints(max_length=200, strip_whitespace=True, pattern=r"^[^\x00]*$")]
Choice = Annotated[int, Path(ge=0, le=MAX_INT32)]


class SearchForm(BaseModel):
    """The fields of the search form as they were typed, and `after`, the cursor where the page begins."""

    completion: Text = ""
    state: Text = ""
    task: Text = ""
    purpose: Text = ""
    version: Text = ""
    text: Text = ""
    before: Text = ""
    after: Text = ""

    def search(self) -> Search:
        """The fields as values. Raises InvalidValue."""
        same = self.model_dump(include={"completion", "state", "task", "text"})
        purpose = "" if self.shown == "all" else self.shown
        return Search(**same, purpose=purpose, version=_number(self.version), before=_time(self.before))

    @property
    def shown(self) -> str:
        """Without a purpose: users' answers, or the one that an id names."""
        return self.purpose or ("all" if self.completion else "user")


@router.get("")
def search(request: Request, session: OperatorReader, asked: Annotated[SearchForm, Query()]) -> Response:
    """A page of answers, newest first."""
    with request.app.state.database.snapshot() as connection:
        page = find_page(connection, asked.search(), _cursor(asked.after))
    kept = {name: value for name, value in asked.model_dump(exclude={"after"}).items() if value}
    others = {name: value for name, value in kept.items() if name != "purpose"}
    # The repr of a float is exact: the next page begins where this one ended.
    after = page.after and f"{page.after.at!r}_{page.after.completion_id}_{page.after.choice}"
    return render(
        request,
        "generations.html",
        session,
        asked=asked,
        is_search=bool(others),
        page=page,
        older=f"?{urlencode({**kept, 'after': after})}" if after else None,
        newest=f"?{urlencode(kept)}" if asked.after else None,
        states=sorted(GENERATION_STATES),
        purposes={title: f"?{urlencode(others | {'purpose': name})}" for name, title in PURPOSES.items()},
        shown=PURPOSES.get(asked.shown),
        said=detail.said,
        cut=detail.cut,
        excerpt=detail.excerpt,
    )


@router.get("/{completion_id}/{choice}")
def show(request: Request, session: OperatorReader, completion_id: str, choice: Choice) -> Response:
    """One answer with its signals, scores and outcomes."""
    with request.app.state.database.snapshot() as connection:
        # A text that is not an id is in no table, and the database may refuse it in a query.
        answer = find_answer(connection, completion_id, choice) if is_completion_id(completion_id) else None
    if answer is None:
        asked = f"{completion_id[:MAX_ID]} with choice {choice}"
        raise NotFound(f"there is no answer {asked} here; it may not have been joined yet, or its day was deleted")
    body, problem = answer.record.open() if answer.record else None, answer.problem
    ids = unpack_ids(body.completion_ids) if body else []
    shown: list[detail.AnswerToken] = []
    if answer.record and body and ids:
        texts = request.app.state.token_texts
        shown = detail.tokens(ids, unpack_floats(body.logprobs), answer.record.spans, texts.texts(ids))
        problem = texts.problem
    return render(
        request,
        "generation.html",
        session,
        answer=answer,
        record=answer.record,
        body=body,
        messages=detail.messages(body.messages) if body else [],
        num_prompt=len(unpack_ids(body.prompt_ids)) if body else 0,
        num_tokens=len(ids),
        tokens=shown,
        limits=detail.LIMITS,
        problem=problem,
        story=detail.story(answer),
    )


def _number(text: str) -> int | None:
    if not text:
        return None
    number = text.removeprefix("v")
    # Records without spans have version -1.
    if not (number.isascii() and number.removeprefix("-").isdecimal() and abs(int(number)) <= MAX_INT32):
        raise InvalidValue(f"{text!r} is not a version; write 7 or v7", param="version")
    return int(number)


def _time(text: str) -> float | None:
    if not text:
        return None
    try:
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()
    except ValueError as error:
        said = f"{text!r} is not a time; write {dt.datetime.now(dt.UTC):{_FORM_TIME}}"
        raise InvalidValue(said, param="before") from error


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    at, _, key = text.partition("_")
    completion_id, _, choice = key.partition("_")
    with suppress(ValueError):
        cursor = Cursor(float(at), completion_id, int(choice))
        if math.isfinite(cursor.at) and is_completion_id(completion_id) and 0 <= cursor.choice <= MAX_INT32:
            return cursor
    raise InvalidValue("this page's address is damaged; begin with the newest answers", param="after")
