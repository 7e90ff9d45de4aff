"""Images on the web: fetched over https within limits, and everything else is refused in one line."""

from __future__ import annotations

import io
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clips import number_of, still
from support.command_line import Pathx, network, picture, scripted

from pathx.errors import PathxError
from pathx.images import find, read
from pathx.images.find import find_images
from pathx.images.read import decode_image, open_image, sha256_of_image
from pathx.images.web import address_name, fetch

# A web server on this machine, with a certificate made at test time

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


_GO_ON = Event()
SIGNED = "X-Amz-Date={0}&X-Amz-Signature=secret{0}"


def image() -> bytes:
    stream = io.BytesIO()
    still(7).save(stream, "PNG")
    return stream.getvalue()


def never_ends(request: BaseHTTPRequestHandler) -> None:
    """Sends a byte now and then, so that no single wait is long."""
    request.send_response(200)
    request.end_headers()
    while not _GO_ON.wait(0.05):
        request.wfile.write(b"x")


def is_missing(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    files = certificate(tmp_path_factory.mktemp("server"))
    answers = {
        "/x.png": sends(image()),
        "/unannounced": sends(image(), announced=-1),
        "/katze%20%C3%B6.png?gr%C3%B6%C3%9Fe=1%202": sends(image()),
        **{f"/{name}.png?{SIGNED.format(n)}": sends(image()) for name in "ab" for n in (1, 2)},
        "/text": sends(b"<html>"),
        "/short": sends(image()[:50], announced=5000),
        "/announced": sends(b"", announced=10**12),
        "/endless": sends(bytes(3 << 20), announced=-1),
        "/slow": never_ends,
        "/gone": is_missing,
        "/gone?token=secret": is_missing,
        "/moved": leads_to("/x.png"),
        "/circle": leads_to("/circle"),
        "/file": leads_to("file:///etc/passwd"),
        "/data": leads_to("data:image/png;base64,AAAA"),
        "/http": leads_to("http://127.0.0.1:1/x.png"),
        "/ftp": leads_to("ftp://127.0.0.1/x.png"),
        "/password": leads_to("https://me:secret@127.0.0.1/x.png"),
    }
    with pytest.MonkeyPatch.context() as patch, serving(answers, files) as address:
        patch.setenv("SSL_CERT_FILE", str(files[0]))
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield address
        _GO_ON.set()


@pytest.mark.parametrize("path", ["/x.png", "/unannounced", "/moved"])
def test_an_image_is_fetched(server: str, path: str) -> None:
    with decode_image(server + path, web=True) as picture:
        assert (picture.file, number_of(picture.pixels)) == (server + path, 7)
        assert picture.sha256 == sha256_of_image(server + path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/text", "is not an image that pathx reads"),
        ("/short", "was cut short on the way: try again"),
        ("/announced", "is larger than 1 MiB"),
        ("/endless", "is larger than 1 MiB"),
        ("/slow", "took more than 1 seconds"),
        ("/gone", "the server says 404 Not Found; check the address"),
        ("/circle", "infinite loop"),
        ("/file", "the server says 302"),
        ("/data", "the server says 302"),
        ("/http", "leads to http://127.0.0.1:1/x.png: pathx fetches https:// only"),
        ("/ftp", "leads to ftp://127.0.0.1/x.png: pathx fetches https:// only"),
        ("/password", "an address on 127.0.0.1 holds a user name"),
    ],
)
def test_what_is_refused(server: str, path: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"size": 1 << 20, "seconds": 1.0 if path == "/slow" else 30.0}
    monkeypatch.setattr("pathx.images.read.fetch", lambda address: fetch(address, **limits))  # type: ignore[arg-type]
    with pytest.raises(PathxError, match=re.escape(reason)) as refused, decode_image(server + path, web=True):
        pass
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1/x.png", "file:///etc/passwd", "ftp://a/b", "https://", "https://[", "https://a:b/c"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(PathxError, match=r"https:// only|has no host|cannot be fetched"):
        fetch(address)


def test_a_certificate_that_nobody_vouches_for_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(PathxError, match="cannot be fetched"):
        fetch(f"{server}/x.png")


def test_an_address_in_a_document_is_never_fetched(server: str) -> None:
    with pytest.raises(PathxError, match="no such file"):
        open_image(f"{server}/x.png")


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["", "[", "[::1", "]", "?", "#", "..", "//", "\0"]))
def test_any_address_has_a_place_below_the_output_folder(host: str, path: str, odd: str) -> None:
    name = address_name(f"https://{host}{odd}/{path}{odd}")
    assert not name.startswith("/") and not {"", ".", ".."} & set(name.split("/"))
    assert name.isprintable()


@given(st.text(max_size=20), st.sampled_from(["[", "[::1", ":x", ":99999999", " ", "\n", "\ud800", "@", ".."]))
def test_any_address_is_refused_in_one_line(path: str, odd: str) -> None:
    with pytest.raises(PathxError) as refused:
        fetch(f"https://{odd}.invalid/{path}{odd}", seconds=20.0)
    assert "\n" not in str(refused.value) and str(refused.value).isprintable()


def test_addresses_as_browsers_show_them(server: str) -> None:
    assert fetch(f"{server}/katze ö.png?größe=1 2#oben") == image()


def test_results_of_addresses_stay_below_the_output_folder(here: Path) -> None:
    assert address_name("https://example.org/a/cat.jpg") == "example.org/a/cat.jpg"
    assert address_name("https://me:secret@example.org:8443/../../x y.jpg") == "example.org_8443/x_y.jpg"
    one, other = (find_images([f"https://example.org/cat.jpg?size={size}"])[0] for size in (1, 2))
    assert re.fullmatch(r"https://example\.org/cat\.jpg\?\.\.\.[0-9a-f]{8}", one.file)
    assert one.source == "https://example.org/cat.jpg?size=1"
    assert one.name != other.name and one.name.startswith("example.org/cat.jpg-")
    given = ["https://example.org/cat.jpg", "https://example.org/cat.jpg", "https://example.org//cat.jpg"]
    assert [found.name for found in find_images(given)] == ["example.org/cat.jpg", "example.org/cat.jpg-2"]


def test_an_address_in_a_list_is_not_fetched(
    server: str, here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((read, "fetch"), (read, "fetch_stored"), (find, "stored_files"), (find, "stored_matches")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("fetched"))
    scripted(network())
    addresses = [f"{server}/a.png", *(f"s3://bucket/{name}" for name in ("a.png", "*.png", "x.tar#1")), "ftp://x/a.png"]
    Path("list.txt").write_text("\n".join([picture(), *addresses]))
    done = pathx_("explain", "list.txt", "--model", "model.pt", "--no-pictures")
    assert done.status == 1 and Path("pathx-out/photo.png").is_dir()
    for address in addresses:
        assert f"{address} is in the list list.txt, and addresses in lists are not fetched" in done.err
    (_, *refused) = find_images(["-"], stdin=io.BytesIO(Path("list.txt").read_bytes()))
    assert len(refused) == 5 and all("is in standard input" in str(one.error) for one in refused)


COMMANDS = {
    "explain": ("explain", "--report", "--save-tensors"),
    "pack": ("decompose", "--format", "json", "--pack", "tar"),
    "evaluate": ("evaluate", "--methods", "saliency", "--steps", "2"),
    "common": ("common",),
    "units": ("units",),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("undrawn")
def test_secrets_in_addresses_are_neither_printed_nor_written(
    server: str, here: Path, pathx_: Pathx, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *options = COMMANDS[name]
    monkeypatch.setenv("PATHX_DEBUG", "1")
    scripted(network())
    for number in (1, 2):
        signed = [f"{server}/{name}.png?{SIGNED.format(number)}" for name in "ab"]
        wrong = [f"{server.replace('//', '//me:secret@')}/x.png", f"{server}/gone?token=secret", "s3://me:secret@b/c"]
        done = pathx_(command, *signed, *wrong, "--model", "model.pt", *options, "--out", "out")
        assert done.status == 1, done.err
        assert "secret" not in done.out + done.err and "secret" not in "".join(os.listdir("out")), done.err
        written = {str(file): file.read_bytes() for file in Path("out").rglob("*") if file.is_file()}
        assert written and not [file for file, data in written.items() if b"secret" in data or "secret" in file]
    if command in ("explain", "decompose"):
        assert "2 done before" in done.err  # though they are signed in another way by now
