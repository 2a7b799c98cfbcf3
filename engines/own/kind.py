"""Our own engine, as the rest of Millrace knows it. It announces itself, follows its assignments and has its settings in `services/engine`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.assignments import LIVE, SLOTS
from engines.kind import EngineKind
from engines.token_route import PATH, reader_of, route_body
from engines.wire import EngineRequest, Wire


def own_body(request: EngineRequest, made: Sequence[int] = ()) -> bytes:
    """The JSON body of a request whose answer has the tokens `made` already."""
    body = route_body(request, made) | {"model": request.model}
    if request.arm in SLOTS and request.arm != LIVE:
        body["arm"] = request.arm  # two slots may hold the version, and only this one keeps it
    if made:
        body["num_made"] = len(made)  # penalties and grammar go on where they were
    return msgspec.json.encode(body)


KIND = EngineKind(Wire(PATH, own_body, reader_of, lambda _: True), start_seconds=300.0)
