"""The OpenAPI document, made from the routes: paths, parameters, bodies, rights.

In: applications. Out: one document, served at `/openapi.json`. A route that reads its own body declares the shape with `takes`.
Descriptions are the docstrings of routes, shapes and fields, so that they stand beside the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from contracts import errors
from services.http import scopes_of

PATH = "/openapi.json"
_SHAPE = "openapi_shape"
_REFERENCE = "#/components/schemas/{name}"
_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "a Millrace key; see `millrace keys api list`. It may be sent as `x-api-key` too",
    },
    "session": {"type": "apiKey", "in": "cookie", "name": "millrace_session", "description": "signed in at /"},
}
_PLACE = re.compile(r"[│├└─ ]*([A-Z]\w+)(?: \(\d+\))?(?: +(.*))?$")
_CONTENT: dict[str, Any] = {
    "application/json": {"schema": {"anyOf": [{"$ref": _REFERENCE.format(name="Error")}, {}]}},
    "text/event-stream": {},
    "text/html": {},
}
RouteType = TypeVar("RouteType", bound=Callable[..., Any])


class FormBody(msgspec.Struct, frozen=True):
    """The names of the fields of a body of `application/x-www-form-urlencoded`."""

    fields: tuple[str, ...]


class _Taken(NamedTuple):
    shape: type | FormBody
    notes: Mapping[str, str]
    example: Any


def takes(
    shape: type | FormBody, *, notes: Mapping[str, str] = MappingProxyType({}), example: Any = None
) -> Callable[[RouteType], RouteType]:
    """Declare on a route's function that its body is JSON of this shape, or this form.

    `notes`: what its type does not say about a field, for example the bounds of a number; `example`: a body that is served.
    """

    def mark(handle: RouteType) -> RouteType:
        setattr(handle, _SHAPE, _Taken(shape, notes, example))
        return handle

    return mark


class ServedRoute(NamedTuple):
    """One route of an application; mounted folders do not count."""

    path: str
    methods: frozenset[str]
    endpoint: Callable[..., Any]
    context: RouteContext


def routes_of(service: FastAPI) -> list[ServedRoute]:
    """The routes of an application, including those of its routers."""
    return [
        ServedRoute(context.path, frozenset(context.methods) - {"HEAD"}, context.endpoint, context)
        for context in iter_route_contexts(service.routes)
        if context.path and context.methods and context.endpoint
    ]


def make_document(services: Iterable[FastAPI], version: str) -> dict[str, Any]:
    """The document of several applications behind one port."""
    shapes: dict[str, _Taken] = {}
    paths: dict[str, dict[str, Any]] = {}
    for service in services:
        scheme = "session" if service.title.endswith("dashboard") else "key"
        for route in routes_of(service):
            path = re.sub(r":\w+}", "}", route.path)
            for method in sorted(route.methods):
                paths.setdefault(path, {})[method.lower()] = _operation(service, route, method, scheme, shapes)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millrace", "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {"securitySchemes": _SCHEMES, "schemas": {**_schemas_of(shapes.values()), "Error": _error()}},
    }


def _operation(
    service: FastAPI, route: ServedRoute, method: str, scheme: str, shapes: dict[str, _Taken]
) -> dict[str, Any]:
    name = route.endpoint.__name__
    summary, _, more = inspect.cleandoc(route.endpoint.__doc__ or name.replace("_", " ")).partition("\n")
    operation: dict[str, Any] = {
        "operationId": f"{name}_{method.lower()}_{re.sub(r'[^a-z]+', '_', route.path).strip('_')}",
        "summary": summary,
        "responses": {"default": {"description": "an answer, or OpenAI's error object", "content": _CONTENT}},
    }
    if more.strip():
        operation["description"] = more.strip()
    if parameters := _described(service, route, method).get("parameters"):
        operation["parameters"] = parameters
    if (taken := getattr(route.endpoint, _SHAPE, None)) is not None:
        operation["requestBody"] = _body(taken, shapes)
    if rights := scopes_of(route.endpoint):
        operation["security"] = [{scheme: sorted({scope for right in rights for scope in right})}]
    return operation


def _body(taken: _Taken, shapes: dict[str, _Taken]) -> dict[str, Any]:
    if isinstance(taken.shape, FormBody):
        form = {"type": "object", "properties": {name: {"type": "string"} for name in taken.shape.fields}}
        return {"content": {"application/x-www-form-urlencoded": {"schema": form}}}
    name = taken.shape.__name__
    shapes[name] = taken
    content: dict[str, Any] = {"schema": {"$ref": _REFERENCE.format(name=name)}}
    if taken.example is not None:
        content["example"] = taken.example
    return {"required": True, "content": {"application/json": content}}


def _schemas_of(taken: Iterable[_Taken]) -> dict[str, Any]:
    """The schemas of bodies and of their parts, each field with its docstring and its note."""
    of_name = {one.shape.__name__: one for one in taken if isinstance(one.shape, type)}
    _, schemas = msgspec.json.schema_components([one.shape for one in of_name.values()], ref_template=_REFERENCE)
    for shape in _structs_in(msgspec.inspect.multi_type_info([one.shape for one in of_name.values()])):
        notes = of_name[shape.__name__].notes if shape.__name__ in of_name else {}
        told = _field_docs(shape)
        for field, schema in schemas.get(shape.__name__, {}).get("properties", {}).items():
            if text := " ".join(filter(None, (told.get(field), notes.get(field)))):
                schema["description"] = text
    return schemas


def _structs_in(content: Any, seen: set[type] | None = None) -> Iterator[type]:
    """Every struct class in msgspec's description of types, each once."""
    seen = set() if seen is None else seen
    if isinstance(content, (list, tuple)):
        for part in content:
            yield from _structs_in(part, seen)
    elif isinstance(content, msgspec.inspect.StructType):
        if content.cls not in seen:
            seen.add(content.cls)
            yield content.cls
            yield from _structs_in(content.fields, seen)
    elif isinstance(content, (msgspec.inspect.Type, msgspec.inspect.Field)):
        for name in content.__struct_fields__:
            yield from _structs_in(getattr(content, name), seen)


@cache
def _field_docs(shape: type) -> dict[str, str]:
    """The docstrings under the fields of a class and of its bases, on one line each."""
    found: dict[str, str] = {}
    for kind in reversed(shape.__mro__):
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except (OSError, TypeError, ValueError):
            continue  # made at run time, or built in
        body = getattr(tree, "body", [])
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str() as told)):
                        found[field.target.id] = " ".join(told.split())
    return found


def _error() -> dict[str, Any]:
    """OpenAI's error object, and every code that it may have: those of `contracts/errors.py`, with their explanations there."""
    explained = {
        found[1]: found[2] or "" for line in (errors.__doc__ or "").splitlines() if (found := _PLACE.match(line))
    }
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.MillraceError)
    ]
    codes = {
        kind.code: {"status": kind.status, "meaning": explained[kind.__name__]}
        for kind in sorted(kinds, key=lambda kind: (kind.status, kind.code))
        if kind.__name__ in explained and kind.status != errors.MillraceError.status
    }
    properties = {
        "message": {"type": "string", "description": "what is wrong, and what to do"},
        "type": {"type": "string", "description": "`invalid_request_error` below 500, else `server_error`"},
        "param": {"type": ["string", "null"], "description": "the field that is wrong"},
        "code": {"type": ["string", "null"], "description": "for programs; see x-codes", "x-codes": codes},
    }
    error = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _described(service: FastAPI, route: ServedRoute, method: str) -> dict[str, Any]:
    """What FastAPI reads from a signature: parameters of path, query and headers. Empty for Starlette's own routes."""
    if not isinstance(route.context.original_route, APIRoute):
        return {}
    described = get_openapi(title=service.title, version="0", routes=[route.context])["paths"]
    paths: list[dict[str, dict[str, Any]]] = [*described.values()]
    return paths[0].get(method.lower(), {}) if paths else {}
