"""`millrace cache`: a region's cache of a weight store, for replicas behind a slow link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cache.fetch import Fetching

_USUAL = Fetching()


def cache(  # noqa: PLR0917 options of a command
    upstream: Annotated[str, typer.Option(help="Where the weights come from: http://HOST:PORT/PREFIX.")],
    folder: Annotated[Path, typer.Option(help="Where fetched objects are kept; nothing is removed from it.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 18561,
    connections: Annotated[
        int, typer.Option(min=1, help="Connections to the upstream, for one object.")
    ] = _USUAL.connections,
    depth: Annotated[int, typer.Option(min=1, help="Parts requested ahead on each connection.")] = _USUAL.depth,
    part_bytes: Annotated[int, typer.Option(min=1, help="Bytes of one part.")] = _USUAL.part_bytes,
) -> None:
    """Serve a region's replicas: each object crosses the link to the trainer once. Needs no home and no key."""
    from services.cache.__main__ import main  # noqa: PLC0415 a server is imported only to run it

    main(upstream, folder, host, port, Fetching(connections=connections, depth=depth, part_bytes=part_bytes))
