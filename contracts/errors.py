"""Every expected failure, one tree. Each carries facts, an HTTP status and a machine-readable code.

MillraceError
├── InvalidRequest (400)         the caller can fix it; `param` names the field
│   ├── UnknownModel (404)
│   ├── NotFound (404)
│   ├── ContextLengthExceeded    prompt and answer together are longer than the policy's context
│   ├── InvalidSchema            a JSON schema that is not valid, too large, or that no answer can meet
│   ├── GrammarStuck             the grammar of an answer became too complex for the engine to go on with
│   ├── Unsupported              part of OpenAI's API but not of ours: refused instead of ignored
│   ├── UnsupportedMediaType (415) a body that is not application/json
│   ├── InvalidTarget            a signal is about exactly one thing
│   │   ├── NotStored (422)      the request of its answer had store=false: nothing about it may be kept
│   │   └── NoSuchChoice (422)   its completion has fewer choices
│   ├── InvalidValue (422)       well-formed, but not what the task declares
│   │   └── UnknownSignal        no task declares it
│   └── Conflict (409)           not in the present state: for example an idempotency key with other content
│       ├── LeaseHeld            another trainer of this policy is running; names it, its machine and its start
│       ├── StillRunning         the first request under this idempotency key has not ended
│       ├── Held                 an operator froze the arms or pinned a version
│       ├── VersionRevoked       a rollback revoked the version permanently
│       └── VersionNotServed     the requested version does not serve now; a retry may succeed
├── Unauthorized (401)
│   └── ReceiptInvalid           a receipt that this home did not write
├── Forbidden (403)             the key is valid, but its role may not do this
│   ├── MissingScope             the key lacks a scope, which `scope` names
│   ├── SessionOver              the session of this key or URL was ended, or its budget is used up
│   ├── OtherSession             the URL names another session than the key
│   ├── OriginRefused            the request comes from a web page, which may not use this route
│   ├── ReceiptOver              a receipt that has expired, or whose signals were all sent
│   └── NotOnReceipt             a receipt for other signals
├── RateLimited (429)            more requests than the operator allows one key per minute, or too many signals about one answer
│   └── Overloaded               the engine's queue is full, or a tenant has had too much compiled; says when to retry
├── EngineFailed (502)           the engine's answer is invalid
│   └── EngineSilent (504)       the engine accepted a request and then stopped answering: the client must not retry
├── ProviderFailed (502)         the provider in front gave no answer that can be passed on
│   └── ProviderSilent (504)     it accepted a request and then stopped answering
├── Unavailable (503)            temporary: storage full, server restarting
│   ├── EngineRestarted          the generation loop crashed during the request: nothing was kept
│   ├── ClockOff                 this machine's clock differs too much from the database's
│   ├── Damaged                  a file is corrupt: bits changed, or it was truncated
│   └── LogRefused               Kafka is there, but certificate, mechanism or sign-in do not fit: `reason` names it
├── VersionNotResident (404)     the engine does not have the requested version
├── InvalidRecord                a log record that cannot be decoded; becomes a dead letter
│   └── NewerSchema              a newer Millrace wrote it: upgrade this process
├── InvalidTask                  a task file with a mistake, named by file and line
├── InvalidSettings              a setting, option or file of the operator has a mistake
│   └── NameTaken                another engine replica that runs has the same name
├── WeightsRefused               a delta or checkpoint failed a check; nothing was changed
├── RecordTooLarge (413)         the log will never take a record of this size
├── PositionLost                 a stored position is outside of the log: records were lost, or deleted before they were read
├── LogLost                      the log does not belong to this database, or lost records
├── StaleWrite                   another writer moved the position, pointer or epoch first
│   └── LeaseLost                another trainer of this policy took over: this one may no longer write
├── StepsBroken                  training steps fail with any samples: device or installation are broken
└── TooManyDeadLetters           so many bad records mean a bad deploy: halt until an operator decides
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


class MillraceError(Exception):
    """Base of all expected failures. Operators see `facts`, which are also fields of the log line; responses have `headers`."""

    status = 500
    code = "internal_error"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str, *, param: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.facts = facts

    def as_openai(self) -> dict[str, Any]:
        """The error object of the OpenAI API."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"  # noqa: PLR2004 the HTTP class boundary
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class InvalidRequest(MillraceError):
    status = 400
    code = "invalid_request"


class UnknownModel(InvalidRequest):
    status = 404
    code = "model_not_found"


class NotFound(InvalidRequest):
    status = 404
    code = "not_found"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class InvalidSchema(InvalidRequest):
    code = "invalid_schema"


class GrammarStuck(InvalidRequest):
    code = "grammar_stuck"


class Unsupported(InvalidRequest):
    code = "unsupported_parameter"


class InvalidTarget(InvalidRequest):
    code = "invalid_target"


class NotStored(InvalidTarget):
    status = 422
    code = "not_stored"


class NoSuchChoice(InvalidTarget):
    status = 422
    code = "no_such_choice"


class InvalidValue(InvalidRequest):
    status = 422
    code = "invalid_value"


class UnknownSignal(InvalidValue):
    code = "unknown_signal"


class Conflict(InvalidRequest):
    status = 409
    code = "conflict"


class LeaseHeld(Conflict):
    code = "lease_held"


class StillRunning(Conflict):
    code = "still_running"
    headers = MappingProxyType({"retry-after": "1"})


class Held(Conflict):
    code = "held"


class VersionRevoked(Conflict):
    code = "version_revoked"


class VersionNotServed(Conflict):
    code = "version_not_served"
    headers = MappingProxyType({"retry-after": "1"})


class UnsupportedMediaType(InvalidRequest):
    status = 415
    code = "unsupported_media_type"


class Unauthorized(MillraceError):
    status = 401
    code = "invalid_api_key"


class ReceiptInvalid(Unauthorized):
    code = "receipt_invalid"


class Forbidden(MillraceError):
    status = 403
    code = "operator_key_required"


class MissingScope(Forbidden):
    code = "missing_scope"


class SessionOver(Forbidden):
    code = "session_over"


class OtherSession(Forbidden):
    code = "other_session"


class OriginRefused(Forbidden):
    code = "origin_refused"


class ReceiptOver(Forbidden):
    code = "receipt_over"


class NotOnReceipt(Forbidden):
    code = "not_on_receipt"


class RateLimited(MillraceError):
    status = 429
    code = "rate_limit_exceeded"


class Overloaded(RateLimited):
    code = "engine_overloaded"

    def __init__(self, message: str, retry_seconds: int) -> None:
        super().__init__(message)
        self.headers = MappingProxyType({"retry-after": str(retry_seconds)})


class EngineFailed(MillraceError):
    status = 502
    code = "engine_failed"


class EngineSilent(EngineFailed):
    # The engine may still be working on it: an SDK that retries makes a slow engine slower.
    status = 504
    code = "engine_silent"
    headers = MappingProxyType({"x-should-retry": "false"})


class ProviderFailed(MillraceError):
    status = 502
    code = "provider_failed"


class ProviderSilent(ProviderFailed):
    status = 504
    code = "provider_silent"


class Unavailable(MillraceError):
    status = 503
    code = "unavailable"


class EngineRestarted(Unavailable):
    code = "engine_restarted"


class Damaged(Unavailable):
    code = "damaged"


class LogRefused(Unavailable):
    code = "log_refused"


class VersionNotResident(MillraceError):
    status = 404
    code = "version_not_resident"


class InvalidRecord(MillraceError):
    code = "invalid_record"


class NewerSchema(InvalidRecord):
    code = "newer_schema"


class InvalidTask(MillraceError):
    code = "invalid_task"


class InvalidSettings(MillraceError):
    code = "invalid_settings"


class NameTaken(InvalidSettings):
    code = "name_taken"


class WeightsRefused(MillraceError):
    """`code` names the check that failed, for example `wrong_base` or `payload_hash`."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class ExpertsNotReplayed(MillraceError):
    """A model chose other experts than those given to it."""

    code = "experts_not_replayed"


class RecordTooLarge(MillraceError):
    status = 413
    code = "record_too_large"


class PositionLost(MillraceError):
    code = "position_lost"


class LogLost(MillraceError):
    code = "log_lost"


class ClockOff(Unavailable):
    code = "clock_off"


class StaleWrite(MillraceError):
    status = 409
    code = "stale_write"


class LeaseLost(StaleWrite):
    code = "lease_lost"


class TooManyDeadLetters(MillraceError):
    code = "too_many_dead_letters"


class StepsBroken(MillraceError):
    code = "steps_broken"


def field_error(param: str, says: str, kind: type[InvalidRequest] = InvalidRequest) -> InvalidRequest:
    """The error about one field; its message begins with the name of the field."""
    return kind(f"{param} {says}", param=param)
