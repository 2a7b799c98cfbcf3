"""`millrace keys`: make an API key. `millrace keys list|new|rotate|trust|renew|retire`: the keys that sign versions."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands import api_keys
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.keys import new_text
from pipelines.release.webhooks import messages as webhook_secret
from runtime.engine_key import ENGINE_KEY, new_engine_key
from runtime.operator_key import APP_KEY, OPERATOR_KEY
from runtime.settings import load_settings
from runtime.settings_file import settings_file
from weights.versions.keys import (
    SIGNING_KEY,
    TRUSTED_KEYS,
    make_next_current,
    move_to_retired,
    next_file,
    read_private_key,
    read_public_keys,
    replicas_folder,
    signing_file,
    signing_key,
    trusted_folder,
    trusted_keys,
    write_private_key,
    write_public_key,
)
from weights.versions.signing import Signer, key_id_of, private_pem, public_pem

app = typer.Typer(invoke_without_command=True)
app.add_typer(api_keys.app, name="api")


@app.callback()
def keys(
    context: typer.Context,
    home: HomeOption = DEFAULT_HOME,
    role: Annotated[str, typer.Option(help="app or operator.")] = "app",
    tenant: Annotated[str, typer.Option(help="Tenant whose traffic this key carries.")] = "default",
) -> None:
    """Make an API key with all scopes of its role, and print it once. `keys api` does more with API keys.

    The other commands are about the keys that sign versions.
    """
    if context.invoked_subcommand is None:
        api_keys.new(home=home, role=role, tenant=tenant)
    elif (home, role, tenant) != (DEFAULT_HOME, "app", "default"):
        raise InvalidSettings(
            f"put the options after the command: millrace keys {context.invoked_subcommand} --home HOME"
        )


@app.command("list")
def print_keys(home: HomeOption = DEFAULT_HOME) -> None:
    """List the trusted keys, those of the environment included, and say which one signs."""
    home = _home(home)
    signer, coming = signing_key(home), read_private_key(next_file(home))
    trusted = trusted_keys(home)
    roles: dict[str, list[str]] = {key_id: ["trusted"] for key_id in trusted}
    for holder, role in ((signer, "signs"), (coming, "signs after `millrace keys rotate`")):
        if holder is not None:
            roles.setdefault(holder.key_id, ["NOT trusted"]).append(role)
    if not roles:
        raise InvalidSettings(f"{home} has no keys; make a pair with: millrace keys new --home {home}")
    width = max(len(", ".join(names)) for names in roles.values())
    for key_id, names in sorted(roles.items()):
        file = f"in {TRUSTED_KEYS}" if os.environ.get(TRUSTED_KEYS) else str(trusted_folder(home) / f"{key_id}.pub")
        print(f"{key_id}  {', '.join(names):<{width}}  {file if key_id in trusted else ''}".rstrip())
    if signer is None:
        print("No private key: this home reads versions and cannot publish any.")


@app.command()
def new(home: HomeOption = DEFAULT_HOME) -> None:
    """Make the first key pair of a home. `up`, `demo` and `init` do this for a new home."""
    home = _home(home, SIGNING_KEY, TRUSTED_KEYS)
    signer = read_private_key(signing_file(home))
    if signer is not None and signer.key_id in trusted_keys(home):
        raise InvalidSettings(
            f"{signing_file(home)} exists already (key {signer.key_id}); replace it with: millrace keys rotate --home {home}"
        )
    _print_made(_trusted_pair(home, signer), home)


@app.command()
def secrets() -> None:
    """Make every secret of processes that share no home, and print them as NAME=value. Nothing is stored.

    Give them to the environment of the processes: docs/kubernetes.md says which process needs which.
    """
    key = Ed25519PrivateKey.generate()
    pems = {SIGNING_KEY: private_pem(key), TRUSTED_KEYS: public_pem(key.public_key())}
    made = {
        APP_KEY: new_text("app"),
        OPERATOR_KEY: new_text("operator"),
        ENGINE_KEY: new_engine_key(),
        **{name: pem.decode().strip().replace("\n", "\\n") for name, pem in pems.items()},
        webhook_secret.VARIABLE: webhook_secret.new_secret(),
    }
    for name, value in made.items():
        print(f"{name}={value}")


@app.command()
def rotate(
    home: HomeOption = DEFAULT_HOME,
    *,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Only make the key and trust it. Let every other home trust it, then switch."),
    ] = False,
) -> None:
    """Sign with a new key from now on, or with the prepared one. The old key stays trusted."""
    home = _home(home, SIGNING_KEY, TRUSTED_KEYS)
    current, coming = read_private_key(signing_file(home)), read_private_key(next_file(home))
    if current is None:
        raise InvalidSettings(
            f"{signing_file(home)} does not exist, so there is nothing to rotate; make a pair with: millrace keys new --home {home}"
        )
    if coming is None:
        coming = _make_pair(home, next_file(home))
    else:
        write_public_key(trusted_folder(home), coming.public_key)
    if prepare:
        _print_made(coming, home)
        print(f"  then          millrace keys rotate --home {home}   (until then {current.key_id} signs)")
        return
    make_next_current(home)
    print(f"{coming.key_id} signs from the next start of training on; until then {current.key_id} signs.")
    print("  start         training again (and nothing else)")
    print(f"  {current.key_id} stays trusted: its versions are still served. To end that: millrace keys retire")


@app.command()
def trust(
    file: Annotated[Path, typer.Argument(help="The .pub file of another home.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    replica: Annotated[
        bool, typer.Option("--replica", help="It is a replica's key: believe its progress reports and nothing else.")
    ] = False,
) -> None:
    """Accept versions that the key in this file signed."""
    home = _home(home) if replica else _home(home, TRUSTED_KEYS)
    folder, as_replica = (replicas_folder(home), " as a replica") if replica else (trusted_folder(home), "")
    known = set() if replica else set(trusted_keys(home))
    for key in read_public_keys(file):
        path = write_public_key(folder, key)
        print(f"{key_id_of(key)} is trusted{as_replica}{' already' if key_id_of(key) in known else ''}: {path}")
    if replica:
        print("  From now on only replicas with a key here are counted on.")


@app.command()
def renew(home: HomeOption = DEFAULT_HOME) -> None:
    """Sign the list of versions again. Training and release do this every hour; use it when neither runs."""
    home = _home(home)
    from commands.snapshots import issue_again  # noqa: PLC0415 the other commands need no codec

    snapshot = issue_again(load_settings(home))
    until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(snapshot.expires_at))
    print(f"snapshot {snapshot.sequence} of {len(snapshot.versions)} versions is good until {until} UTC")


@app.command()
def retire(
    key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its id, as `millrace keys list` prints it.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Even if versions in the store have only its signature.")
    ] = False,
) -> None:
    """Stop trusting a key. Versions with only its signature are refused at once, old ones too."""
    home = _home(home, TRUSTED_KEYS)
    trusted = trusted_keys(home)
    if key_id not in trusted:
        raise InvalidSettings(f"{key_id!r} is not trusted in {home}; trusted: {', '.join(trusted) or 'none'}")
    signer, coming = signing_key(home), read_private_key(next_file(home))
    if signer is not None and signer.key_id == key_id:
        switch = f"switch to another key first, with: millrace keys rotate --home {home}"
        raise InvalidSettings(f"{key_id} signs the versions of this home: {switch}")
    if coming is not None and coming.key_id == key_id:
        give_up = f"to give it up, delete {next_file(home)} first"
        raise InvalidSettings(f"{key_id} is the key that `millrace keys rotate` switches to; {give_up}")
    if len(trusted) == 1:
        raise InvalidSettings(f"{key_id} is the only key that {home} trusts: trust its successor first")
    if not force and (versions := _signed_by(home, key_id)):
        raise InvalidSettings(
            f"only {key_id} signed {len(versions)} of the versions in the store, {versions[0]} to {versions[-1]}. They would "
            "be refused, also by an engine that needs one of them at its start, and by training, which needs version 0. Let the "
            f"current key list them, with: millrace keys renew --home {home}; or retire it anyway with --force"
        )
    path = move_to_retired(home, key_id)
    print(
        f"{key_id} is retired: its new signatures are refused. Of its versions, only those in the signed list are read."
    )
    print(f"  back          millrace keys trust {path} --home {home}")


def make_first_keys(home: Path) -> None:
    """Give a new home a key pair, unless it has a private key or trusts other keys. It trusts the key that it signs with.

    Raises InvalidSettings: an existing key cannot be read, or the disk cannot be written.
    """
    if not trusted_keys(home):
        _trusted_pair(home, signing_key(home))


def _home(home: Path, *variables: str) -> Path:
    """The folder whose keys the processes read.

    Raises InvalidSettings: it does not exist, or one of these variables overrides its keys, so that changes would do nothing.
    """
    if name := next(filter(os.environ.get, variables), None):
        raise InvalidSettings(
            f"{name} is set, so the keys in {home} do not count: change them where it is set, or unset it"
        )
    if not home.is_dir():
        raise InvalidSettings(f"{home} does not exist; name a home with --home")
    return load_settings(home).home if settings_file(home).exists() else home.resolve()


def _signed_by(home: Path, key_id: str) -> list[int]:
    """Versions that only this key vouches for, and no other key's snapshot. Empty for a home without a store."""
    if not settings_file(home).exists():
        return []
    from commands.snapshots import vouched_by  # noqa: PLC0415 the other commands need no codec

    return vouched_by(load_settings(home), key_id)


def _make_pair(home: Path, file: Path) -> Signer:
    key = Ed25519PrivateKey.generate()
    # Private key first: after a kill between the two writes, the next start can make the public key from it.
    write_private_key(file, key)
    write_public_key(trusted_folder(home), key.public_key())
    return Signer(key)


def _trusted_pair(home: Path, signer: Signer | None) -> Signer:
    if signer is None:
        return _make_pair(home, signing_file(home))
    write_public_key(trusted_folder(home), signer.public_key)
    return signer


def _print_made(signer: Signer, home: Path) -> None:
    print(f"{signer.key_id} is made and trusted in {home}")
    file = f"{trusted_folder(home) / signer.key_id}.pub"
    print(f"  elsewhere     millrace keys trust {file}   (a copy of the file, in every home)")
