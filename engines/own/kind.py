"""Our own engine. It announces itself, follows its assignments and has its settings in `services/engine`."""

from __future__ import annotations

from engines.kind import EngineKind
from engines.own.wire import OWN_WIRE

KIND = EngineKind(OWN_WIRE, start_seconds=300.0)
