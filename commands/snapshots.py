"""Snapshots for the commands about keys: issue one again, and find versions that still need a key."""

from __future__ import annotations

from contextlib import closing

from contracts.errors import InvalidSettings, WeightsRefused
from runtime.settings import Settings
from runtime.snapshot_rows import DatabaseSnapshotRows
from weights.issuer import Issuer
from weights.stores.opening import open_any_store, open_weight_store
from weights.stores.store import WeightStore
from weights.versions.keys import keyring_of, signer_of, trusted_keys
from weights.versions.layout import edge_name
from weights.versions.signing import Keyring
from weights.versions.snapshot import MOST_BYTES, Snapshot, digest_of_manifest, parse_snapshot, snapshot_path


def issue_again(settings: Settings) -> Snapshot:
    """Issue the snapshot of a home's versions, with the key that signs now. Raises InvalidSettings: this home does not sign."""
    signer = signer_of(settings)
    if signer is None or settings.weights_unsigned:
        raise InvalidSettings(f"{settings.home} does not sign (weights_unsigned), so it has no snapshot to renew")
    store = open_weight_store(settings, publishes=True)
    with closing(settings.database()) as database:
        rows = DatabaseSnapshotRows(database, settings.policy)
        keyring = keyring_of(settings)
        return Issuer(rows, store, settings.policy, settings.run, signer=signer, keyring=keyring).issue()


def vouched_by(settings: Settings, key_id: str) -> list[int]:
    """Versions with a manifest that this key signed, and that no snapshot of another trusted key lists."""
    store = open_any_store(settings, keyring=None)
    listed = _listed(settings, store, without=key_id)
    signed = []
    for version in store.versions(settings.policy):
        edges, _ = store.survey(settings.policy, version)
        alone = (edge for edge in edges if listed.get((version, edge_name(edge))) != digest_of_manifest(edge))
        if any(edge.key == key_id for edge in alone):
            signed.append(version)
    return signed


def _listed(settings: Settings, store: WeightStore, *, without: str) -> dict[tuple[int, str], str]:
    """Digests of the manifests that the snapshot in the store lists, unless the key `without` signed it."""
    trusted = {key_id: key for key_id, key in trusted_keys(settings.home).items() if key_id != without}
    try:
        text = store.read_small(snapshot_path(settings.policy), MOST_BYTES)
        entries = {} if text is None else parse_snapshot(text, settings.policy, Keyring(trusted)).versions
    except WeightsRefused:
        return {}
    return {(version, name): digest for version, entry in entries.items() for name, digest in entry.edges.items()}
