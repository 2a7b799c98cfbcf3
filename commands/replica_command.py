"""`millrace replica`: the options of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.replica import run_replica


def replica(
    *,
    policy: Annotated[str, typer.Option(help="Name of the policy.")],
    store: Annotated[
        str, typer.Option(help="s3://bucket/prefix, http(s)://..., or a folder. S3 reads the AWS_* variables.")
    ],
    folder: Annotated[
        Path, typer.Option(help="Folder for this replica alone; it keeps the trusted keys in keys/trusted.")
    ],
    version: Annotated[int | None, typer.Option(help="Version to bring. Default: the live one.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and bring each new live version.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the pointer.")] = 2.0,
    name: Annotated[
        str, typer.Option(help="Name under which the publisher sees it. Default: the machine's name.")
    ] = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept versions without a signature.")] = False,
    fallback: Annotated[
        list[str] | None, typer.Option(help="Another store, for when --store fails or is stale. Repeat it for more.")
    ] = None,
) -> None:
    """Keep a policy's weights in a folder, in step with a weight store. Needs no home, no database and no torch."""
    run_replica(
        policy=policy,
        store=store,
        folder=folder,
        version=version,
        follow=follow,
        every=every,
        name=name,
        unsigned=unsigned,
        fallbacks=fallback or (),
    )
