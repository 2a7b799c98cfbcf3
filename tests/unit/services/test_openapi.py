"""The OpenAPI document has every route, with its body and its rights; docs/api.md is what it says, and every example is served."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.database import Database
from runtime.operations import Operations
from services.openapi import routes_of
from services.serving import make_web
from services.web import make
from tests.api_page import PAGE, page
from tests.databases import write_migrated
from tests.unit.services.inference.conftest import stage
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home, make_key, serve

_METHODS_WITH_BODY = {"post", "put", "patch"}
_WITHOUT_BODY = {"/api/logout", "/v1/chat/completions/{completion_id}"}


def test_every_route_stands_in_it(document: dict[str, Any], home: Path) -> None:
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for service in make(make_home(home)).values()
        for route in routes_of(service)
        for method in route.methods
    }
    frame = {("/health", "get"), ("/ready", "get"), ("/openapi.json", "get")}
    assert {(path, method) for path, item in document["paths"].items() for method in item} == served | frame


def test_what_takes_a_body_says_which(document: dict[str, Any]) -> None:
    silent = {
        path
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in _METHODS_WITH_BODY and "requestBody" not in operation
    }
    assert silent == _WITHOUT_BODY
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ChatCompletion"
    }
    assert document["components"]["schemas"]["ChatCompletion"]["required"] == ["model", "messages"]


def test_it_names_rights_parameters_and_nothing_that_is_not_there(document: dict[str, Any]) -> None:
    paths = document["paths"]
    assert paths["/v1/chat/completions"]["post"]["security"] == [{"key": ["inference"]}]
    assert paths["/v1/feedback/{signal_id}"]["delete"]["security"] == [{"key": ["feedback"]}]
    assert "security" not in paths["/health"]["get"]
    assert {parameter["name"] for parameter in paths["/api/rollback"]["get"]["parameters"]} == {"to"}
    references = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert references <= document["components"]["schemas"].keys()
    operations = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(set(operations)) == len(operations)


__all__ = ["stage"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    write_migrated(home / "millrace.db")
    make_base(home / "base")
    return home


@pytest.fixture(scope="module")
def url(home: Path, stage: Stage) -> Iterator[str]:
    stage.engine = FakeEngine("Table for 4")
    with serve(make_web(make(make_home(home, stage.url)), Operations())) as place:
        yield place


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    return httpx.get(f"{url}/openapi.json").raise_for_status().json()


def test_the_page_is_made_from_the_served_document(document: Any) -> None:
    written = page(document)
    if "MILLRACE_WRITE" in os.environ:
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "run this test with MILLRACE_WRITE=1 and commit docs/api.md"


def test_every_route_and_field_says_what_it_means(document: Any) -> None:
    silent = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, told in schema.get("properties", {}).items()
        if name in {"ChatCompletion", "PromptBody", "ResponsesBody", "FeedbackItem", "HotLoadRequest"}
        and not told.get("description")
    ]
    assert silent == []
    plain = [
        f"{method} {path}"
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if path.startswith(("/v1/", "/hot_load/")) and not operation["summary"].endswith(".")
    ]
    assert plain == []


def test_every_example_is_served(document: Any, home: Path, url: str, stage: Stage) -> None:
    stage.engine = FakeEngine("Table for 4")
    with closing(Database(f"sqlite:///{home / 'millrace.db'}")) as database:
        headers = {"authorization": f"Bearer {make_key(database)}"}
    asked = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if path.startswith("/v1/") and method == "post" and "{" not in path:
                assert "example" in content, path
                body = content["example"] | ({"model": "demo"} if "model" in content["example"] else {})
                answer = httpx.post(f"{url}{path}", json=body, headers=headers, timeout=20)
                assert answer.is_success, (path, answer.text)
                asked += 1
    assert asked >= 3
