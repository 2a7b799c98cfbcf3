"""What every driver of an engine says and takes, and how it asks: a follower knows no more. And whether a server is one for this policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import httpx
import msgspec

from contracts.engines import Ability
from contracts.errors import InvalidSettings, Unavailable
from contracts.packing import MOST_IDS
from runtime.base_policy import model_of

MOST_TOP = 20
"""How many of the likeliest tokens a caller may ask for."""
_FIRST_ERROR = 400
_SHOWN_CHARACTERS = 500


class WeightDifference(NamedTuple):
    """What a server computes with, against a version."""

    num_equal: int
    different: tuple[str, ...]
    unknown: tuple[str, ...]
    """Weights of the server, or tensors of the version, that could not be compared."""

    @property
    def is_exact(self) -> bool:
        """True if every weight was compared and is equal."""
        return self.num_equal > 0 and not self.different and not self.unknown


class VersionFile(NamedTuple):
    """A version on the server's own disk: one safetensors file, which every worker can read."""

    version: int
    root: str
    path: Path


class HeldVersions(NamedTuple):
    """What a server says about itself."""

    name: str
    """As its tokens are labelled: `v7`, `v6-to-v7`, or `default` after a start."""
    version: int | None
    """Of the weights that all its workers hold, as `root`; None: its own checkpoint, or the workers differ."""
    root: str | None
    is_broken: bool

    @property
    def is_whole(self) -> bool:
        """True if name and weights agree."""
        return not self.is_broken and self.version is not None and self.name == f"v{self.version}"


class ServerFacts(NamedTuple):
    """How a server was started. `model`, `tokenizer`: its folders of config.json and tokenizer.json, on this host."""

    model: str
    tokenizer: str
    dtype: str
    has_sampled_logprobs: bool
    """True if log-probs are those of the distribution sampled from, at least without filters."""
    has_constraints: bool
    has_seeds: bool
    num_top_logprobs: int
    """The most likely tokens that it reports at each place."""
    has_experts: bool
    """True if it records the experts of each token."""
    adapter_rank: int = 0
    """The largest rank of an adapter that it takes; 0: it takes none."""
    num_adapters: int = 0
    """How many adapters compute at once."""


class EngineDriver(Protocol):
    """One server of another project. Not for several threads."""

    def facts(self) -> ServerFacts:
        """How it was started. Raises Unavailable; InvalidSettings if it was started in a way that cannot be followed."""

    def held(self) -> HeldVersions:
        """What it serves. Raises Unavailable."""

    def check(self) -> None:
        """Raises Unavailable if it does not answer, or its engine died."""

    def stage(self, target: VersionFile, base_root: str | None) -> None:
        """Prepare a version while the server goes on. `base_root`: of the weights that it must replace; None: any.

        Raises WeightsRefused: a worker refused it; Unavailable: the server is away.
        """

    def push(self, target: VersionFile, base: VersionFile | None) -> float:
        """Make the server serve a staged version; without a base whatever it holds. Requests in flight go on, with the new weights.

        Returns:
            The seconds in which no token could be made.

        Raises WeightsRefused: `wrong_base`; nothing was changed; Unavailable: the server is away or failed. With the fact `mixed` it stays
        paused: stage and push without a base.
        """

    def compare(self, target: VersionFile) -> WeightDifference:
        """Compare what it computes with against a version. It makes no tokens meanwhile. Raises Unavailable."""

    def is_paused(self) -> bool:
        """True if it may make no tokens. Raises Unavailable."""

    def resume(self) -> None:
        """Let a server that holds a whole version go on. Raises Unavailable."""


def worse(error: Unavailable, more: str, **facts: object) -> Unavailable:
    """The same failure with more text and facts."""
    extended = Unavailable(f"{error.message}; {more}")
    extended.facts = error.facts | facts
    return extended


class Server:
    """One engine's control endpoints.

    Args:
        client: with `base_url`, `authorization(engine_key(home))` in its headers, and a timeout longer than the engine takes
            to load weights.
    """

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.url = str(client.base_url)

    def try_to_resume(self, path: str, body: Mapping[str, object] | None = None) -> str | None:
        """Post to `path`; if that fails too, returns text to add to a message."""
        try:
            self.post(path, body)
        except Unavailable as error:
            return f"it may still be paused: {error.message}"
        return None

    def get(self, path: str) -> dict[str, object]:
        """As `post`, without a body."""
        return self.post(path, method="GET")

    def post(
        self,
        path: str,
        body: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
        method: str = "POST",
    ) -> dict[str, object]:
        """The answer's JSON object; empty if the answer is not one. Raises as `text`."""
        try:
            content = msgspec.json.decode(self.text(method, path, body, params))
        except msgspec.DecodeError:
            return {}
        return content if isinstance(content, dict) else {}

    def text(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> str:
        """The answer.

        Raises Unavailable: no answer (fact `status` is None) or an error (`status` is the HTTP status), with its text.
        """
        try:
            answer = self._client.request(method, path, json=body, params=params)
        except httpx.TransportError as error:
            said = str(error) or type(error).__name__
            raise Unavailable(
                f"{self.url} did not answer {method} {path}: {said}", url=self.url, path=path, status=None
            ) from error
        if answer.status_code >= _FIRST_ERROR:
            raise Unavailable(
                f"{self.url} answered {method} {path} with {answer.status_code}: {answer.text[-_SHOWN_CHARACTERS:]}",
                url=self.url,
                path=path,
                status=answer.status_code,
            )
        return answer.text


def check_server(facts: ServerFacts, base: Path, url: str) -> None:
    """Raises InvalidSettings if a server has not the model and the tokenizer of the base policy, or its folders cannot be read here."""
    own = _model(base, "the base policy")
    found = _model(Path(facts.model), f"the model of {url}")
    for name in sorted(own.keys() | found.keys()):
        if own.get(name) != found.get(name):
            values = f"{name} of its config.json is {found.get(name)!r}, of the base policy {own.get(name)!r}"
            raise InvalidSettings(f"{url} serves another model, {facts.model}: {values}; start it with {base}")
    if _tokenizer(Path(facts.tokenizer)) != _tokenizer(base):
        differs = "its tokenizer.json differs from that of the base policy"
        raise InvalidSettings(f"{url} has another tokenizer, {facts.tokenizer}: {differs}; start it with {base}")


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
