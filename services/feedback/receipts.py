"""Receipts: permission to send a few signals about one answer, for pages that have no key. Pure.

    r1.<payload>.<code>     payload: msgpack, base64url; code: HMAC-SHA-256 of all before it, base64url

The code is compared in constant time before the payload is decoded. Anyone can read a receipt, nobody without the home's secret can
write one. It names everything that a page may not choose: tenant, answer, person, signals.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from contracts.errors import NotOnReceipt, OriginRefused, ReceiptInvalid, ReceiptOver, UnknownSignal, field_error
from contracts.ids import route_of
from contracts.records import Submitter
from contracts.tasks import Task
from services.feedback.requests import MAX_CHOICE, MAX_ID, check_stored

MOST_SIGNALS = 16
"""That receipts of one answer and person are good for, however many receipts there are."""
MOST_SECONDS = 7 * 86_400.0
_VERSION, _PAD, _DIGEST_BYTES = "r1.", "==", 12


class ReceiptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an app's server asks for."""

    completion_id: str
    """The answer that the page shows."""
    signals: list[str]
    """Names of up to 16 signals that the page may send."""
    choice: int = 0
    """Which of the answers of a completion: 0 to 7."""
    seconds: float = 86_400.0
    """How long it is good for: up to 7 days."""
    submitter: str | None = None
    """A name for the person who sees the page, which the page can read: a hash. Without it, whoever asked the question."""


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The payload. `expires_at`: UTC epoch seconds."""

    tenant: str
    completion_id: str
    choice: int
    signals: tuple[str, ...]
    expires_at: int
    submitter: str = Submitter(id="anonymous").id

    @property
    def digest(self) -> str:
        """Names answer and person. Another receipt for both has the same one."""
        about = [self.tenant, self.completion_id, self.choice, self.submitter]
        return blake2b(msgspec.msgpack.encode(about), digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def ids(self) -> list[str]:
        """The ids that its signals may have."""
        return [f"receipt-{self.digest}-{place}" for place in range(MOST_SIGNALS)]

    def check(self, name: object, origin: str | None, allowed: tuple[str, ...], now: float) -> None:
        """Raises OriginRefused: a page of another site sends it; ReceiptOver: it has expired; NotOnReceipt: not this signal."""
        if origin is not None and origin not in allowed:
            raise OriginRefused(f"pages of {origin[:128]!r} may not send feedback: add it to `feedback_origins`")
        if self.expires_at <= now:
            raise ReceiptOver("this receipt has expired; ask your server for another", param="receipt")
        if name not in self.signals:
            raise NotOnReceipt(f"this receipt is for {', '.join(self.signals)}", param="name")


def receipt_for(wanted: ReceiptRequest, tasks: Mapping[str, Task], tenant: str, now: float) -> Receipt:
    """The receipt that an app asked for. Raises InvalidRequest: a field is malformed; NotStored: nothing about this answer may be kept."""
    check_stored(wanted.completion_id)
    route_of(wanted.completion_id)
    if not 0 <= wanted.choice <= MAX_CHOICE:
        raise field_error("choice", f"must lie in [0, {MAX_CHOICE}], not {wanted.choice}")
    if not 1 <= wanted.seconds <= MOST_SECONDS:
        raise field_error("seconds", f"must lie in [1, {MOST_SECONDS:.0f}], not {wanted.seconds:g}")
    declared = {name for task in tasks.values() for name in task.signals}
    if not 1 <= len(wanted.signals) <= MOST_SIGNALS or not declared.issuperset(wanted.signals):
        takes = f"takes 1 to {MOST_SIGNALS} names that tasks declare: {', '.join(sorted(declared))}"
        raise field_error("signals", takes, UnknownSignal)
    submitter = Receipt.__struct_defaults__[0] if wanted.submitter is None else wanted.submitter
    if not 1 <= len(submitter) <= MAX_ID or "\0" in submitter:
        raise field_error("submitter", f"takes 1 to {MAX_ID} characters, without NUL")
    signals = tuple(dict.fromkeys(wanted.signals))
    return Receipt(tenant, wanted.completion_id, wanted.choice, signals, int(now + wanted.seconds), submitter)


def write_receipt(receipt: Receipt, secret: bytes) -> str:
    """Its text."""
    signed = _VERSION + _text(msgspec.msgpack.encode(receipt))
    return f"{signed}.{_code(signed, secret)}"


def read_receipt(text: str, secret: bytes) -> Receipt:
    """The receipt of a text. Raises ReceiptInvalid: it was not written with this secret."""
    signed, _, code = text.rpartition(".")
    # As bytes: the comparison of texts refuses letters outside of ASCII.
    is_ours = hmac.compare_digest(code.encode(errors="replace"), _code(signed, secret).encode())
    if not (is_ours and signed.startswith(_VERSION)):
        raise ReceiptInvalid(
            "this receipt is none of this server's: it was changed, cut, or made for another home", param="receipt"
        )
    return msgspec.msgpack.decode(urlsafe_b64decode(signed.removeprefix(_VERSION) + _PAD), type=Receipt)


def _code(signed: str, secret: bytes) -> str:
    return _text(hmac.digest(secret, signed.encode(errors="replace"), "sha256"))


def _text(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")
