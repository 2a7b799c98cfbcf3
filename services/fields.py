"""Fields that nobody knows are refused, with the one that was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from contracts.errors import InvalidRequest

_MOST_SHOWN = 64
_MOST_COMPARED = 100


def refuse_unknown(given: Iterable[object], known: Collection[str], where: str = "") -> None:
    """Check the names of an object's fields. `where`: its path, with a dot behind it.

    Raises:
        InvalidRequest: one is unknown; `param` is its path.
    """
    for name in given:
        if name in known:
            continue
        shown = str(name)[:_MOST_SHOWN]
        near = get_close_matches(shown[:_MOST_COMPARED].lower(), known, 1)
        hint = f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(known)}"
        raise InvalidRequest(f"there is no field {where}{shown!s}; {hint}", param=f"{where}{shown}")
