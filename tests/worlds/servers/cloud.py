"""A cloud over TLS: S3 (moto), which serves known keys only, and two places that give such keys to workloads with a token.

POST /sts           AssumeRoleWithWebIdentity, for a token of the issuer
GET /credentials    credentials of a container, for the token in `Authorization`
everything else     S3
"""

from __future__ import annotations

import io
import json
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs
from uuid import uuid4

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from tests.worlds.servers.authority import Issued

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ROLE = "arn:aws:iam::123456789012:role/weights"
WEB_TOKEN, POD_TOKEN = "web-token", "pod-token"
_KEY, _SESSION = "ASIAWORKLOAD", "session-of-a-workload"


class Cloud:
    """See the module; an application of WSGI."""

    def __init__(self) -> None:
        self.given: list[str] = []
        """Who was given keys."""
        self.bucket = f"bucket-{uuid4().hex}"
        """Of this cloud alone: all clouds of a process are one moto, which makes a bucket once."""
        self._s3 = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()  # for moto, "write if it does not exist" is two steps
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(self.bucket, "us-east-1")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if path == "/sts":
            return self._assume(environ, body, start_response)
        if path == "/credentials":
            return self._container(environ, start_response)
        signed = environ.get("HTTP_AUTHORIZATION", "")
        if f"Credential={_KEY}/" not in signed or environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != _SESSION:
            return _answer(start_response, "403 Forbidden", b"<Error><Code>InvalidAccessKeyId</Code></Error>")
        environ["wsgi.input"] = io.BytesIO(body)
        with self._turn:
            return list(self._s3(environ, start_response))

    def _assume(self, environ: WSGIEnvironment, body: bytes, start_response: StartResponse) -> Iterable[bytes]:
        asked = parse_qs(environ.get("QUERY_STRING", "") + "&" + body.decode())
        if asked.get("WebIdentityToken") != [WEB_TOKEN] or asked.get("RoleArn") != [ROLE]:
            says = b"<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>"
            return _answer(start_response, "400 Bad Request", says)
        self.given.append("web identity")
        content = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{_KEY}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>{_SESSION}</SessionToken>"
            f"<Expiration>{_in_an_hour()}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        return _answer(start_response, "200 OK", content.encode())

    def _container(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("HTTP_AUTHORIZATION") != POD_TOKEN:
            return _answer(start_response, "401 Unauthorized", b"{}")
        self.given.append("pod identity")
        content = {"AccessKeyId": _KEY, "SecretAccessKey": "secret", "Token": _SESSION, "Expiration": _in_an_hour()}
        return _answer(start_response, "200 OK", json.dumps(content).encode())


def _in_an_hour() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))


def _answer(start_response: StartResponse, status: str, content: bytes) -> list[bytes]:
    start_response(status, [("content-length", str(len(content)))])
    return [content]


@contextmanager
def serving(cloud: Cloud, issued: Issued) -> Iterator[str]:
    """Its address, with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    server = make_server("127.0.0.1", 0, cloud, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
