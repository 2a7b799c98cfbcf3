"""The words that packed heads refer to (`contracts/wire.py`): examples of records, with our own names and no app's.

**Frozen.** Every packed record of every log needs these very bytes, so no letter may change; a test has their hash. A better
dictionary would be a second one, under a new schema. Fields that are newer than it are packed too, only a little worse.

Rare fields come first: what stands near the end is the cheapest to refer to.
"""

from __future__ import annotations

from typing import Any

import msgspec

_EXAMPLES = """[
 {"schema": 3, "completion_id": "chatcmpl-01a", "choice": 0, "tenant": "default", "policy": "", "task": "",
  "task_hash": "", "purpose": "user", "arm": "live", "arm_probability": 1.0, "draw": {"unit": "", "unit_kind":
  "session", "version": 1, "canary": [1, 0.5], "holdout": [1, 0.5], "learning": [1, 0.5]}, "spans": [{"start": 0,
  "version": 0}], "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 1, "min_p": 0.1, "max_tokens": 1, "seed":
  1, "constraint": "json_schema", "raw_logprobs": true}, "finish_reason": "length", "created_at": 1800000000.0,
  "finished_at": 1800000000.0, "engine": "millrace/1", "dtype": "bfloat16", "session_id": "", "turn": {"parent":
  "chatcmpl-01a:0", "parent_tokens": 1, "branch": "first", "group": ""}, "join_key": "", "ask_probability": 0.5,
  "person": "", "attempt": {"request": "", "count": 1}, "num_choices": 1, "key_id": ""},
 {"schema": 3, "id": "fb_", "completion_id": "chatcmpl-01a", "choice": 0, "name": "", "value": "", "correction": "",
  "at": 1800000000.0, "received_at": 1800000000.0, "tenant": "default", "submitter": {"id": "", "kind": "operator"},
  "comment": "", "metadata": {}, "key_id": "", "retracted": true, "share": {"session": "", "last": "chatcmpl-01a:0",
  "index": 0, "calls": 1, "credit": 1.0, "ended_at": 1800000000.0, "group": ""}},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "reason": "window", "source": [0, 0], "purpose": "sentinel",
  "signals": [], "closed_at": 1800000000.0, "provisional": true, "off_line": true},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "epoch": 1, "state": "trained", "version": 1, "writer":
  "training", "at": 1800000000.0, "sequence": 1, "also": [["chatcmpl-01a:0", 1, 1]]},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "policy": "", "task": "", "task_hash": "", "tenant":
  "default", "purpose": "user", "baseline_key": "", "source": [0, 0], "scores": [], "reward": null, "weight": 1.5,
  "status": "unlabelled", "scored_at": 1800000000.0},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "epoch": 0, "state": "unlabelled", "reason": "silence",
  "writer": "rewards", "at": 1800000000.0},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "policy": "", "task": "", "task_hash": "", "tenant":
  "default", "purpose": "user", "baseline_key": "", "source": [0, 0], "scores": [{"name": "", "grader":
  "json_schema/2#", "value": 1.0, "weight": 0.0}, {"name": "", "grader": "json_exact/2#", "value": null, "weight":
  0.0, "status": "unlabelled", "reason": "no metadata.reference"}, {"name": "", "grader": "", "value": null,
  "status": "unscored", "fault": "infra", "propensity": 0.5, "seconds": 0.1}, {"name": "", "grader": "signal/2#",
  "value": 0.0, "weight": 1.5}], "reward": 1.0, "weight": 1.5, "status": "scored", "scored_at": 1800000000.0},
 {"schema": 3, "key": "chatcmpl-01a:0", "revision": 1, "reason": "decisive", "source": [0, 0], "signals":
  [{"schema": 3, "id": "fb_", "completion_id": "chatcmpl-01a", "choice": 0, "name": "", "value": true, "at":
  1800000000.0, "received_at": 1800000000.0, "tenant": "default", "submitter": {"id": ""}}], "closed_at":
  1800000000.0},
 {"schema": 3, "id": "fb_", "completion_id": "chatcmpl-01a", "choice": 0, "name": "", "value": true, "at":
  1800000000.0, "received_at": 1800000000.0, "tenant": "default", "submitter": {"id": ""}},
 {"schema": 3, "completion_id": "chatcmpl-01a", "choice": 0, "tenant": "default", "policy": "", "task": "",
  "task_hash": "", "purpose": "user", "arm": "live", "arm_probability": 1.0, "spans": [{"start": 0, "version": 0}],
  "sampling": {"temperature": 1.0, "max_tokens": 0}, "finish_reason": "stop", "created_at": 1800000000.0,
  "finished_at": 1800000000.0, "engine": "millrace/1", "dtype": "bfloat16", "num_choices": 1}
]"""


def dictionary() -> bytes:
    """The msgpack of all examples."""
    examples = msgspec.json.decode(_EXAMPLES, type=list[dict[str, Any]])
    return b"".join(map(msgspec.msgpack.encode, examples))
