"""Which rights a route's signature requires. Pure.

A parameter `Annotated[..., Security(find, scopes=[...])]` is a right: the caller is looked up before the route runs, and must
have these scopes; an empty list means any known caller. A route without such a parameter is open to everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi.params import Security


def rights_of(handle: Callable[..., Any]) -> list[Security]:
    """Each right that a route's function requires; empty if the route is open."""
    hints = get_type_hints(handle, include_extras=True).values()
    marks = [mark for hint in hints if get_origin(hint) is Annotated for mark in get_args(hint)[1:]]
    return [mark for mark in marks if isinstance(mark, Security)]


def scopes_of(handle: Callable[..., Any]) -> list[tuple[str, ...]]:
    """The scopes of each of these rights."""
    return [tuple(right.scopes or ()) for right in rights_of(handle)]
