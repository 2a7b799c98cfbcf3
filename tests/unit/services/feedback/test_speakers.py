"""The role of a key decides which kinds of submitter it may speak for."""

from __future__ import annotations

import pytest

from contracts.keys import NewKey, make_key
from tests.unit.services.feedback.conftest import Feedback
from tests.unit.services.serving import make_key as a_key

PRIVILEGED = ["judge", "code", "operator"]


def who(kind: str) -> dict[str, str]:
    return {"id": "u1", "kind": kind}


@pytest.mark.parametrize("kind", PRIVILEGED)
def test_an_app_speaks_for_its_users_only(feedback: Feedback, kind: str) -> None:
    answer = feedback.send(submitter=who(kind))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (403, "operator_key_required", "submitter.kind")
    assert f"submitter.kind '{kind}'" in error["message"]
    assert "millrace keys api new --role operator --scopes feedback" in error["message"]
    assert feedback.num_received() == feedback.num_waiting() == 0
    assert feedback.counts()["rejected"] == 1


def test_in_a_batch_each_item_is_refused_on_its_own(feedback: Feedback) -> None:
    kinds = ["user", "judge", "user", "code", "operator"]
    items = [feedback.item(submitter=who(kind)) for kind in kinds]
    answer = feedback.call("POST", "/batch", json={"items": items})
    assert answer.status_code == 207
    told = answer.json()
    assert [item["index"] for item in told["successes"]] == [0, 2]
    assert [(item["index"], item["status"], item["error"]["param"]) for item in told["errors"]] == [
        (place, 403, "submitter.kind") for place in (1, 3, 4)
    ]
    assert feedback.num_received() == 2


@pytest.mark.parametrize("kind", ["user", *PRIVILEGED])
def test_an_operators_key_that_can_only_send_feedback_speaks_as_anybody(feedback: Feedback, kind: str) -> None:
    with feedback.database.transaction() as connection:
        key = make_key(connection, NewKey("operator", scopes=frozenset(("feedback",))))
    assert feedback.call("POST", "", key, json=feedback.item(submitter=who(kind))).status_code == 202


def test_a_key_without_the_scope_sends_nothing(feedback: Feedback) -> None:
    with feedback.database.transaction() as connection:
        key = make_key(connection, NewKey("app", scopes=frozenset(("inference",))))
    answer = feedback.call("POST", "", key, json=feedback.item())
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")
    assert "scope feedback" in answer.json()["error"]["message"]


def test_other_tenants_signals_do_not_exist(feedback: Feedback) -> None:
    feedback.send(id="fb-1")
    for role in ("app", "operator"):
        key = a_key(feedback.database, role, tenant="other")
        for method in ("GET", "DELETE"):
            assert feedback.call(method, "/fb-1", key).status_code == 404
    assert feedback.call("GET", "/fb-1").json()["retracted_at"] is None
