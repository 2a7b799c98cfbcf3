"""Writes docs/api.md from the OpenAPI document that a started service serves: `python -m tests.api_page URL`.

In: the document of inference and feedback. Out: the page: routes, fields with types and limits, errors, examples. Pure but for `main`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
_PAGES = "session"
"""The security scheme of the dashboard, whose routes are for its own pages."""
_OWN = ("/health", "/ready", "/openapi.json")
_HEAD = """\
# API

This page is made from the OpenAPI document that a started server serves at `/openapi.json`, by `python -m tests.api_page`; a test fails if
it says something else. [A chat request](chat.md) explains what the fields of a chat do, [Dialects](dialects.md) those of other APIs, and
[Clients](clients.md) shows what unmodified SDKs get. `base_url` of OpenAI's SDK is `http://HOST:PORT/v1`, that of Anthropic's `http://HOST:PORT`; the key
goes into `Authorization: Bearer KEY` or `x-api-key: KEY`.
"""
_ERRORS = """\
## Errors

Every refusal and failure is OpenAI's error object (under `/v1/messages` Anthropic's), so that SDKs raise their own exceptions:

```json
{"error": {"message": "n must lie in [1, 8], not 9", "type": "invalid_request_error", "param": "n", "code": "invalid_request"}}
```

`param` names the field that is wrong, if there is one. 429 and 503 have `retry-after`. A stream that fails after its first event ends with
an event of this shape.

| Status | Code | Meaning |
|---|---|---|
"""


def page(document: Mapping[str, Any]) -> str:
    """The whole page."""
    schemas, parts, used = document["components"]["schemas"], [_HEAD], list[str]()
    routes = list(_routes(document))
    rows = [
        f"| `{method} {path}` | {operation['summary']} | {_right(operation)} |" for path, method, operation in routes
    ]
    parts.append("\n".join(["| Route | What it does | Scope of the key |", "|---|---|---|", *rows, ""]))
    for path, method, operation in routes:
        parts.extend(_route(path, method, operation, schemas, used))
    shown = set[str]()
    parts.append("## Shapes\n\nParts of bodies, in the order of their first use.\n")
    while left := [name for name in used if name not in shown]:
        shown.add(left[0])
        parts.append(f"### {left[0]}\n")
        parts.append(_shape(schemas[left[0]], used))
    codes = schemas["Error"]["properties"]["error"]["properties"]["code"]["x-codes"]
    parts.append(_ERRORS + "\n".join(_code(code, told) for code, told in codes.items()) + "\n")
    return "\n".join(parts)


def _code(code: str, told: Mapping[str, Any]) -> str:
    return f"| {told['status']} | `{code}` | {_cell(told['meaning'])} |"


def _routes(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of inference and feedback, and those of every process."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            schemes = {name for right in operation.get("security", []) for name in right}
            if path.startswith(("/v1/", "/hot_load/", "/tokenize")) or path in _OWN:
                assert _PAGES not in schemes, path
                yield path, method.upper(), operation


def _right(operation: Mapping[str, Any]) -> str:
    names = [name for right in operation.get("security", []) for scopes in right.values() for name in scopes]
    return ", ".join(f"`{name}`" for name in names) or "open"


def _route(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any], used: list[str]
) -> Iterator[str]:
    yield f"## {method} {path}\n"
    yield f"{operation['summary']}\n"
    if told := operation.get("description"):
        yield f"{told}\n"
    if found := operation.get("parameters"):
        yield "| Parameter | In | Type | Meaning |\n|---|---|---|---|"
        for one in found:
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'], used)} | {_meaning(one | one['schema'])} |"
        yield ""
    if (body := operation.get("requestBody")) is None:
        return
    content = body["content"]["application/json"]
    name = content["schema"]["$ref"].rpartition("/")[2]
    yield _shape(schemas[name], used)
    if "example" in content:
        yield f"```json\n{json.dumps(content['example'], indent=2)}\n```\n"


def _shape(schema: Mapping[str, Any], used: list[str]) -> str:
    parts = [schema["description"], ""] if "description" in schema else []
    if "anyOf" in schema or "properties" not in schema:
        return "\n".join([*parts, f"{_type(schema, used)}\n"])
    required = schema.get("required", [])
    parts += ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        parts.append(f"| `{name}` | {_type(field, used)} | {default} | {_meaning(field)} |")
    return "\n".join([*parts, ""])


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "" if value is None else f"`{json.dumps(value)}`"


def _type(schema: Mapping[str, Any], used: list[str]) -> str:
    """In words; null is left out, because every field that is not required may be null."""
    if "anyOf" in schema:
        found = [_type(part, used) for part in schema["anyOf"] if part != {"type": "null"}]
        return " or ".join(dict.fromkeys(found))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        used.append(name)
        return f"[{name}](#{name.lower()})"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), used)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'], used)}"
    return str(kind)


_LIMITS = {
    "minimum": "at least {}", "maximum": "at most {}", "exclusiveMinimum": "more than {}", "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters", "maxLength": "up to {} characters", "maxItems": "up to {:,} items",
    "minItems": "at least {} items", "pattern": "matches `{}`",
}  # fmt: skip


def _meaning(field: Mapping[str, Any]) -> str:
    inner = [part for part in field.get("anyOf", []) if isinstance(part, dict)]
    limits = [text.format(part[name]) for part in (field, *inner) for name, text in _LIMITS.items() if name in part]
    told = _cell(field.get("description", ""))
    return " ".join(filter(None, [told, f"({', '.join(limits)})" if limits else ""]))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Read the document of a started server and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.api_page", description=__doc__)
    parser.add_argument("url", help="of a started server, for example http://127.0.0.1:8400")
    document = httpx.get(f"{parser.parse_args().url}/openapi.json").raise_for_status().json()
    PAGE.write_text(page(document))
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
