"""Makes a home ready: settings, tables, keys, the base policy as version 0, and `live` pointing at it.

Run again, it writes the settings of that start and makes only what is missing: the run goes on, with the same policy.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commands.queries import has_keys
from contracts import assignments
from contracts.assignments import LIVE
from contracts.errors import InvalidSettings
from contracts.keys import create_key
from contracts.settings import Section, Settings, load_settings, write_settings
from contracts.tasks import load_tasks
from contracts.weights.format import Tensor, Tensors, read_safetensors
from contracts.weights.store import FolderWeightStore, publish_version


class Home(NamedTuple):
    """A home that is ready. `app_key` is None if it was printed at an earlier start."""

    settings: Settings
    operator_key: str
    app_key: str | None


def prepare_home(settings: Settings, sections: dict[str, Section]) -> Home:
    """See the module docstring.

    Raises:
        InvalidTask, InvalidSettings: before anything is written.
    """
    load_tasks(settings.tasks)
    if (settings.home / "millrace.toml").exists():
        settings = _continued(settings, load_settings(settings.home))
    base = Path(settings.base)
    if not base.is_dir():
        raise InvalidSettings(f"policy folder {base} does not exist")
    write_settings(settings, sections)
    database = settings.database()
    database.migrate()
    app_key = None
    operator_file = settings.home / "operator.key"
    with database.transaction() as connection:
        if not has_keys(connection):
            app_key = create_key(connection, "app")
            _write_secret(operator_file, create_key(connection, "operator"))
    token_file = settings.home / "dashboard.token"
    if not token_file.exists():
        _write_secret(token_file, secrets.token_urlsafe(24))
    store = FolderWeightStore(settings.weights)
    if 0 not in store.versions(settings.policy):
        publish_version(
            store,
            policy=settings.policy,
            run=settings.run,
            version=0,
            parent=None,
            base=None,
            target=to_bf16(read_safetensors(base)),
            step=0,
            epoch=0,
            num_samples=0,
            created_at=time.time(),
        )
    with database.transaction() as connection:
        if LIVE not in assignments.read(connection, settings.policy):
            assignments.move(
                connection,
                policy=settings.policy,
                arm=LIVE,
                version=0,
                expected_epoch=0,
                writer="up",
                reason="base policy",
                share=1.0,
            )
    database.close()
    return Home(settings, operator_file.read_text().strip(), app_key)


def _continued(settings: Settings, held: Settings) -> Settings:
    """Settings for a home that was started before: weights, checkpoints and log there belong to one run of one policy."""
    if (settings.policy, settings.base) != (held.policy, held.base):
        raise InvalidSettings(
            f"{held.home} holds {held.policy!r} made from {held.base}, not {settings.policy!r} from {settings.base}: "
            "choose another --home, or correct `base` in its millrace.toml if the folder has moved",
        )
    return settings.model_copy(update={"run": held.run})


def to_bf16(tensors: Tensors) -> Tensors:
    """The published form of a policy: every float tensor as bf16, rounded to nearest even."""
    return {name: _bf16(tensor) for name, tensor in tensors.items()}


def _bf16(tensor: Tensor) -> Tensor:
    if tensor.dtype not in {"F32", "F16"}:
        return tensor
    source = np.float32 if tensor.dtype == "F32" else np.float16
    bits = tensor.data.view(source).astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return Tensor("BF16", tensor.shape, rounded.view(np.uint8))


def _write_secret(path: Path, secret: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
