"""The OpenAPI document has every route, with its body and its rights."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from runtime.operations import Operations
from runtime.settings import Settings
from services.openapi import routes_of
from services.serving import make_web
from services.web import make
from tests.databases import write_migrated
from tests.unit.services.inference.world import make_base
from tests.unit.services.serving import make_home, serve

_METHODS_WITH_BODY = {"post", "put", "patch"}
_WITHOUT_BODY = {"/api/logout", "/v1/chat/completions/{completion_id}"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("home")
    write_migrated(home / "millrace.db")
    make_base(home / "base")
    return make_home(home)


@pytest.fixture(scope="module")
def document(settings: Settings) -> Any:
    with serve(make_web(make(settings), Operations())) as url:
        return httpx.get(f"{url}/openapi.json").raise_for_status().json()


def test_every_route_stands_in_it(document: dict[str, Any], settings: Settings) -> None:
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for service in make(settings).values()
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
