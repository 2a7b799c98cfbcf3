"""Whether a server is one for this policy, and what it can do. In: what it says of itself. Out: abilities, or why it is refused.

Waits for: the disk. A server that somebody else started may serve another model. Its folder is read on this host, as the server reads
the files of versions.
"""

from __future__ import annotations

from pathlib import Path

from contracts.engines import Ability
from contracts.errors import InvalidSettings
from contracts.packing import MOST_IDS
from engines.following.driver import ServerFacts
from runtime.base_policy import model_of

MOST_TOP = 20
"""How many of the likeliest tokens a caller may ask for."""


def check_server(facts: ServerFacts, base: Path, url: str) -> None:
    """Check that a server has the model and the tokenizer of the base policy; weights may differ.

    Raises:
        InvalidSettings: it has others, or its folders cannot be read here.
    """
    own = _model(base, "the base policy")
    found = _model(Path(facts.model), f"the model of {url}")
    if different := sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name)):
        name = different[0]
        raise InvalidSettings(
            f"{url} serves another model, {facts.model}: {name} of its config.json is {found.get(name)!r}, of the base policy "
            f"{own.get(name)!r}; start it with {base}"
        )
    if _tokenizer(Path(facts.tokenizer)) != _tokenizer(base):
        raise InvalidSettings(
            f"{url} has another tokenizer, {facts.tokenizer}: its tokenizer.json differs from that of the base policy; start it with {base}"
        )


def abilities(facts: ServerFacts) -> frozenset[Ability]:
    """What a server can do, by how it was started. Every driver's server names versions and counts penalties."""
    found: set[Ability] = {"spans", "penalties"}
    optional: dict[Ability, bool] = {
        "logprobs": facts.has_sampled_logprobs,
        "top_logprobs": facts.num_top_logprobs >= MOST_TOP,
        "support": facts.num_top_logprobs > MOST_IDS,
        "constraints": facts.has_constraints,
        "seed": facts.has_seeds,
        "experts": facts.has_experts,
    }
    return frozenset(found | {name for name, has in optional.items() if has})


def _model(folder: Path, what: str) -> dict[str, object]:
    try:
        return model_of(folder)
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidSettings(f"config.json of {what} cannot be read on this host, in {folder}: {error}") from error


def _tokenizer(folder: Path) -> bytes:
    try:
        return (folder / "tokenizer.json").read_bytes()
    except OSError as error:
        raise InvalidSettings(f"tokenizer.json cannot be read on this host, in {folder}: {error}") from error
