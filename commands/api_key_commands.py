"""`millrace keys api`: the entries of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.options import DEFAULT_HOME, HomeOption

api_keys_app = typer.Typer(
    help="Keys of apps and operators: who may call, for what and until when.", no_args_is_help=True
)


@api_keys_app.command("list")
def api_keys_list(home: HomeOption = DEFAULT_HOME) -> None:
    """Every key: id, role, tenant, scopes, whether it is good, until when; never a secret."""
    from commands.api_keys import print_keys  # noqa: PLC0415

    print_keys(home)


@api_keys_app.command("new")
def api_keys_new(  # noqa: PLR0917 options of a command
    home: HomeOption = DEFAULT_HOME,
    role: Annotated[str, typer.Option(help="app or operator: who speaks.")] = "app",
    tenant: Annotated[str, typer.Option(help="Whose traffic this key carries.")] = "default",
    scopes: Annotated[
        str, typer.Option(help="Some of inference,feedback,operator:read,operator:write; by default all of the role.")
    ] = "",
    expires: Annotated[str, typer.Option(help="30d, 12h, or a date; by default never.")] = "",
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Make a key and print it, once."""
    from commands.api_keys import new  # noqa: PLC0415

    new(home, role=role, tenant=tenant, scopes=scopes, expires=expires, name=name)


@api_keys_app.command("revoke")
def api_keys_revoke(
    keys: Annotated[list[str], typer.Argument(help="Ids; `millrace keys api list` has them.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Refuse keys from now on, within two seconds, and end the dashboard's sessions that were opened with them."""
    from commands.api_keys import revoke  # noqa: PLC0415

    revoke(home, keys)
