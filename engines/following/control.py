"""An engine's control endpoints over HTTP, and the errors for their failures."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import msgspec

from contracts.errors import Unavailable

_FIRST_ERROR = 400
_SHOWN_CHARACTERS = 500


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
        """The answer's JSON object.

        Raises:
            Unavailable: as `post`.
        """
        return self._ask("GET", path)

    def post(
        self, path: str, body: Mapping[str, object] | None = None, params: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        """The answer's JSON object; empty if the answer is not one.

        Raises:
            Unavailable: no answer (fact `status` is None) or an error (`status` is the HTTP status), with its text.
        """
        return self._ask("POST", path, body, params)

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
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
        try:
            content = msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            return {}
        return content if isinstance(content, dict) else {}
