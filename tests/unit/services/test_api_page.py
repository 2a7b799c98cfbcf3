"""docs/api.md is what the served OpenAPI document says, every field has a meaning, and every example is served."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.database import Database
from runtime.operations import Operations
from services.serving import make_web
from services.web import make
from tests.api_page import PAGE, page
from tests.databases import write_migrated
from tests.unit.services.inference.conftest import stage
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home, make_key, serve

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
