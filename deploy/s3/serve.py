"""An S3 server in memory, moto, for tests and trying things out. usage: serve.py PORT BUCKET.

Any keys will do, and all that it holds is lost when it ends.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_REGION = "us-east-1"


class OneAtATime:
    """moto looks whether an object exists, then writes it: `If-None-Match` only means something if both are one."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._turn = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request. Its body is read before its turn, so that a client that stalls holds up nobody."""
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._turn:
            return list(self._app(environ, start_response))


def main(port: int, bucket: str) -> None:
    """Serve until killed."""
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(bucket, _REGION)
    run_simple("127.0.0.1", port, OneAtATime(DomainDispatcherApplication(create_backend_app)), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
