"""A web server on this machine, with a certificate made at test time."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

Answer = Callable[[BaseHTTPRequestHandler], None]


def certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    files = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    made = [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]]
    subprocess.run(made, check=True, capture_output=True)
    return files


@contextmanager
def serving(answers: dict[str, Answer], files: tuple[Path, Path]) -> Iterator[str]:
    """Answers by path; gives the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers[self.path](self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sends(data: bytes, announced: int | None = None) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if announced != -1:
            request.send_header("Content-Length", str(len(data) if announced is None else announced))
        request.end_headers()
        request.wfile.write(data)

    return answer


def leads_to(address: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", address)
        request.end_headers()

    return answer
