"""Fields that the bodies of several decisions have."""

from __future__ import annotations

from typing import Annotated

import msgspec

from contracts.record_checks import MAX_INT32

InBody = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
