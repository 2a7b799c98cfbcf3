"""`millrace keys`: API keys; and the keys that sign versions, `millrace keys list|new|rotate|trust|retire`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contracts.errors import InvalidSettings
from contracts.keys import NewKey, Role, create_key
from runtime.settings import load_settings
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
from weights.versions.signing import Signer, key_id_of


def run_keys(home: Path, role: str, tenant: str) -> None:
    """Make an API key with all scopes of its role, and print it."""
    NewKey(cast("Role", role), tenant).check(time.time())
    with load_settings(home).database().transaction() as connection:
        print(create_key(connection, cast("Role", role), tenant))


def make_first_keys(home: Path) -> None:
    """What a new home lacks: a pair, unless it has a private key or was told whom to trust; and trust in the key it signs with.

    Raises:
        InvalidSettings: a key that is there cannot be read, or the disk cannot be written.
    """
    if trusted_keys(home):
        return
    signer = signing_key(home)
    if signer is None:
        _make_pair(home)
    else:
        write_public_key(trusted_folder(home), signer.public_key)


def print_keys(home: Path) -> None:
    """One line for each key that counts here, the environment's included."""
    home = _home(home)
    signer, coming = signing_key(home), read_private_key(next_file(home))
    trusted = trusted_keys(home)
    roles: dict[str, list[str]] = {key_id: ["trusted"] for key_id in trusted}
    for holder, role in ((signer, "signs"), (coming, "signs after `millrace keys rotate`")):
        if holder is not None:
            roles.setdefault(holder.key_id, ["NOT trusted"]).append(role)
    if not roles:
        raise InvalidSettings(f"{home} has no keys; make a pair with: millrace keys new --home {home}")
    width = max(len(", ".join(told)) for told in roles.values())
    for key_id, told in sorted(roles.items()):
        file = f"in {TRUSTED_KEYS}" if os.environ.get(TRUSTED_KEYS) else str(trusted_folder(home) / f"{key_id}.pub")
        print(f"{key_id}  {', '.join(told):<{width}}  {file if key_id in trusted else ''}".rstrip())
    if signer is None:
        print("No private key: versions are read here, and none can be published.")


def new(home: Path) -> None:
    """Make the first pair of a home."""
    home = _home(home, SIGNING_KEY, TRUSTED_KEYS)
    signer = read_private_key(signing_file(home))
    if signer is None:
        signer = _make_pair(home)
    elif signer.key_id in trusted_keys(home):
        raise InvalidSettings(
            f"{signing_file(home)} is there already (key {signer.key_id}); replace it with: millrace keys rotate --home {home}"
        )
    else:
        write_public_key(trusted_folder(home), signer.public_key)
    _say_made(signer, home)


def rotate(home: Path, *, only_prepare: bool) -> None:
    """Sign with another key from now on; the old one stays trusted. `only_prepare`: make it and trust it, switch later."""
    home = _home(home, SIGNING_KEY, TRUSTED_KEYS)
    current, coming = read_private_key(signing_file(home)), read_private_key(next_file(home))
    if current is None:
        raise InvalidSettings(
            f"{signing_file(home)} does not exist: there is nothing to rotate; make a pair with: millrace keys new --home {home}"
        )
    if coming is None:
        key = Ed25519PrivateKey.generate()
        write_private_key(next_file(home), key)
        coming = Signer(key)
    write_public_key(trusted_folder(home), coming.public_key)
    if only_prepare:
        _say_made(coming, home)
        print(f"  then          millrace keys rotate --home {home}   (until then {current.key_id} signs)")
        return
    make_next_current(home)
    print(f"{coming.key_id} signs from the next start of training on; until then {current.key_id} does.")
    print("  start         training again (and nothing else)")
    print(f"  {current.key_id} stays trusted: what it signed is still served. To end that: millrace keys retire")


def trust(home: Path, file: Path) -> None:
    """Take versions that the keys in this file sign."""
    home = _home(home, TRUSTED_KEYS)
    keys = read_public_keys(file)
    for key in keys:
        is_new = key_id_of(key) not in trusted_keys(home)
        path = write_public_key(trusted_folder(home), key)
        print(f"{key_id_of(key)} is trusted{'' if is_new else ' already'}: {path}")


def trust_replica(home: Path, file: Path) -> None:
    """Believe how far the replicas say they got whose keys are in this file."""
    home = _home(home)
    for key in read_public_keys(file):
        path = write_public_key(replicas_folder(home), key)
        print(f"{key_id_of(key)} is believed as a replica: {path}")
    print("  From now on only replicas with a key here are counted on.")


def renew(home: Path) -> None:
    """Issue the snapshot of the versions again."""
    home = _home(home)
    from commands.snapshots import issue_again  # noqa: PLC0415 the other commands need no codec

    snapshot = issue_again(load_settings(home))
    until = time.strftime("%Y-%m-%d %H:%M", time.gmtime(snapshot.expires_at))
    print(f"snapshot {snapshot.sequence} of {len(snapshot.versions)} versions is good until {until} UTC")


def retire(home: Path, key_id: str, *, force: bool) -> None:
    """Take no version of this key any more, at once. `force`: also where only this key vouches for some in the store."""
    home = _home(home, TRUSTED_KEYS)
    trusted = trusted_keys(home)
    if key_id not in trusted:
        raise InvalidSettings(f"{key_id!r} is not trusted in {home}; trusted: {', '.join(trusted) or 'none'}")
    signer, coming = signing_key(home), read_private_key(next_file(home))
    if signer is not None and signer.key_id == key_id:
        raise InvalidSettings(
            f"{key_id} signs what this home publishes: switch to another first, with: millrace keys rotate --home {home}"
        )
    if coming is not None and coming.key_id == key_id:
        raise InvalidSettings(
            f"{key_id} is what `millrace keys rotate` will switch to; if it shall not, delete {next_file(home)} first"
        )
    if len(trusted) == 1:
        raise InvalidSettings(f"{key_id} is the only key that {home} trusts: trust its successor first")
    if not force and (versions := _signed_by(home, key_id)):
        raise InvalidSettings(
            f"{key_id} alone vouches for {len(versions)} of the versions in the store, {versions[0]} to {versions[-1]}: they would "
            "be refused, also by an engine that starts and needs one of them, and by training, which needs version 0. Let the "
            f"key that signs now list them, with: millrace keys renew --home {home}; or retire it all the same with --force"
        )
    path = move_to_retired(home, key_id)
    print(
        f"{key_id} is retired: what it signs is refused from now on. Of what it signed only listed versions are read."
    )
    print(f"  back          millrace keys trust {path} --home {home}")


def _home(home: Path, *variables: str) -> Path:
    """The folder whose keys the processes read.

    Raises:
        InvalidSettings: there is none, or one of these variables stands before it, so that changes would do nothing.
    """
    for name in variables:
        if os.environ.get(name):
            raise InvalidSettings(
                f"{name} is set, so the keys in {home} do not count: change them where it is set, or unset it"
            )
    if not home.is_dir():
        raise InvalidSettings(f"{home} does not exist; name a home with --home")
    return load_settings(home).home if (home / "millrace.toml").exists() else home.resolve()


def _signed_by(home: Path, key_id: str) -> list[int]:
    """Versions that only this key vouches for, and no snapshot of another; none where a home has no store yet."""
    if not (home / "millrace.toml").exists():
        return []
    from commands.snapshots import vouched_by  # noqa: PLC0415 the other commands need no codec

    return vouched_by(load_settings(home), key_id)


def _make_pair(home: Path) -> Signer:
    key = Ed25519PrivateKey.generate()
    # In this order, whoever comes after a kill in between can make what is missing.
    write_private_key(signing_file(home), key)
    write_public_key(trusted_folder(home), key.public_key())
    return Signer(key)


def _say_made(signer: Signer, home: Path) -> None:
    print(f"{signer.key_id} is made and trusted in {home}")
    print(
        f"  elsewhere     millrace keys trust {trusted_folder(home) / signer.key_id}.pub   (a copy of the file, in every home)"
    )
