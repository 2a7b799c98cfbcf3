"""The OpenAPI document, made from the routes: paths, parameters, bodies, rights.

In: applications. Out: one document, served at `/openapi.json`. A route that reads its own body declares the shape with `takes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from services.rights import scopes_of

PATH = "/openapi.json"
_SHAPE = "openapi_shape"
_REFERENCE = "#/components/schemas/{name}"
_SCHEMES = {
    "key": {"type": "http", "scheme": "bearer", "description": "a Millrace key; see `millrace keys api list`"},
    "session": {"type": "apiKey", "in": "cookie", "name": "millrace_session", "description": "signed in at /"},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_CONTENT: dict[str, Any] = {
    "application/json": {"schema": {"anyOf": [{"$ref": _REFERENCE.format(name="Error")}, {}]}},
    "text/event-stream": {},
    "text/html": {},
}
RouteType = TypeVar("RouteType", bound=Callable[..., Any])


class FormBody(msgspec.Struct, frozen=True):
    """The names of the fields of a body of `application/x-www-form-urlencoded`."""

    fields: tuple[str, ...]


def takes(shape: type | FormBody) -> Callable[[RouteType], RouteType]:
    """Declare on a route's function that its body is JSON of this shape, or this form."""

    def mark(handle: RouteType) -> RouteType:
        setattr(handle, _SHAPE, shape)
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
    shapes: dict[str, type] = {}
    paths: dict[str, dict[str, Any]] = {}
    for service in services:
        scheme = "session" if service.title.endswith("dashboard") else "key"
        for route in routes_of(service):
            path = re.sub(r":\w+}", "}", route.path)
            for method in sorted(route.methods):
                paths.setdefault(path, {})[method.lower()] = _operation(service, route, method, scheme, shapes)
    _, schemas = msgspec.json.schema_components(list(shapes.values()), ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Millrace", "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {"securitySchemes": _SCHEMES, "schemas": {**schemas, "Error": _ERROR}},
    }


def _operation(
    service: FastAPI, route: ServedRoute, method: str, scheme: str, shapes: dict[str, type]
) -> dict[str, Any]:
    described = _described(service, route, method)
    operation: dict[str, Any] = {
        "operationId": f"{route.endpoint.__name__}_{method.lower()}_{re.sub(r'[^a-z]+', '_', route.path).strip('_')}",
        "summary": (route.endpoint.__doc__ or route.endpoint.__name__.replace("_", " ")).strip().splitlines()[0],
        "responses": {"default": {"description": "an answer, or OpenAI's error object", "content": _CONTENT}},
    }
    if parameters := described.get("parameters"):
        operation["parameters"] = parameters
    shape = getattr(route.endpoint, _SHAPE, None)
    if isinstance(shape, FormBody):
        operation["requestBody"] = _form(shape)
    elif shape is not None:
        shapes[shape.__name__] = shape
        schema = {"$ref": _REFERENCE.format(name=shape.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if rights := scopes_of(route.endpoint):
        operation["security"] = [{scheme: sorted({scope for right in rights for scope in right})}]
    return operation


def _form(form: FormBody) -> dict[str, Any]:
    properties: Mapping[str, Any] = {name: {"type": "string"} for name in form.fields}
    schema = {"type": "object", "properties": properties}
    return {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}


def _described(service: FastAPI, route: ServedRoute, method: str) -> dict[str, Any]:
    """What FastAPI reads from a signature: parameters of path, query and headers. Empty for Starlette's own routes."""
    if not isinstance(route.context.original_route, APIRoute):
        return {}
    document = get_openapi(title=service.title, version="0", routes=[route.context])
    for item in document["paths"].values():
        operation: dict[str, Any] = item.get(method.lower(), {})
        return operation
    return {}
