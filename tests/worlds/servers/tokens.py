"""An issuer of tokens: its keys are in a file, and an https endpoint gives tokens to a client with a secret."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.worlds.servers.authority import Issued

AUDIENCE = "kafka"
CLIENT, SECRET, SCOPE = "millrace", "the client's secret", "records"


class TokenIssuer:
    """Signs tokens (RFC 7519) with a key of its own."""

    name = "https://issuer.example.org"

    def __init__(self, folder: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_numbers()
        entry = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1"}
        entry |= {"n": _word(public.n.to_bytes(256, "big")), "e": _word(public.e.to_bytes(3, "big"))}
        self.keys = folder / "keys.json"
        self.keys.write_text(json.dumps({"keys": [entry]}))
        self.num_given = 0

    def token(self, **changes: Any) -> str:
        """A good token, with these claims changed."""
        now = int(time.time())
        claims = {
            "iss": self.name,
            "aud": AUDIENCE,
            "sub": CLIENT,
            "iat": now,
            "exp": now + 600,
            "scope": SCOPE,
        } | changes
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_word(json.dumps(part).encode()) for part in (head, claims))
        return f"{signed}.{_word(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


@contextmanager
def token_endpoint(issuer: TokenIssuer, issued: Issued) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            if self.headers["authorization"] != f"Basic {login}":
                self._answer(401, {"error": "invalid_client"})
            elif form != {"grant_type": ["client_credentials"], "scope": [SCOPE]}:
                self._answer(400, {"error": "invalid_scope"})
            else:
                issuer.num_given += 1
                self._answer(200, {"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 600})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the name of the base class
            del format, args

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}/token"
    server.shutdown()
    server.server_close()
    thread.join()


def _word(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
