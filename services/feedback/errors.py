"""What feedback refuses by a code of its own; all are kinds of the errors in contracts."""

from __future__ import annotations

from contracts.errors import InvalidRequest, InvalidValue


class InvalidTarget(InvalidRequest):
    """A signal is about exactly one thing."""

    code = "invalid_target"


class TargetNotSupported(InvalidValue):
    """Sessions and join keys are declared shapes that are not served yet."""

    code = "target_not_supported"


class UnknownSignal(InvalidValue):
    """No task declares it."""

    code = "unknown_signal"
