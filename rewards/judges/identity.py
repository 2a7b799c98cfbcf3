"""The identity of a judge: the label in its scores, and what an admission was measured for."""

from __future__ import annotations

from typing import Any

from contracts.tasks.judges import JudgeEndpoint, JudgeRule
from rewards.judges.prompt import rubric_hash

_NUM_HEX = 8


def label_of(rule: JudgeRule, task_hash: str) -> str:
    """`judge/<model>/<rubric>#<task>`: models joined by +, each with its revision if it has one."""
    models = "+".join(
        endpoint.model + (f"@{endpoint.revision}" if endpoint.revision else "") for endpoint in rule.endpoints
    )
    return f"judge/{models}/{rubric_hash(rule)[:_NUM_HEX]}#{task_hash}"


def identity_of(rule: JudgeRule) -> dict[str, Any]:
    """Everything that can change what the judge says: models, their addresses, the prompt, how members combine."""
    return {
        "rubric": rubric_hash(rule),
        "protocol": rule.protocol,
        "members": [_endpoint(endpoint) for endpoint in rule.endpoints],
        "combine": f"quantile {rule.quantile:g}" if rule.combine == "quantile" else "min",
        "fallback": _endpoint(rule.fallback) if rule.fallback else None,
    }


def _endpoint(endpoint: JudgeEndpoint) -> dict[str, str]:
    return {"url": endpoint.url.rstrip("/"), "model": endpoint.model, "revision": endpoint.revision}
