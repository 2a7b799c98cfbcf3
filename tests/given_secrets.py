"""Which process needs which secret where no home is shared. The Helm chart and docs/kubernetes.md are compared with this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipelines.release.webhooks.messages import VARIABLE as WEBHOOK_SECRET
from runtime.engine_key import ENGINE_KEY
from runtime.operator_key import APP_KEY, OPERATOR_KEY
from weights.versions.keys import SIGNING_KEY, TRUSTED_KEYS

NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "init": (APP_KEY, OPERATOR_KEY, ENGINE_KEY, SIGNING_KEY, TRUSTED_KEYS),
        "engine": (ENGINE_KEY, TRUSTED_KEYS),
        "inference": (ENGINE_KEY, TRUSTED_KEYS),
        "feedback": (),
        "dashboard": (TRUSTED_KEYS,),
        "episodes": (),
        "rewards": (),
        "training": (SIGNING_KEY, TRUSTED_KEYS),
        "release": (OPERATOR_KEY, SIGNING_KEY, TRUSTED_KEYS, WEBHOOK_SECRET),
    }
)
