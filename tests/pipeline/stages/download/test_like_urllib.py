"""The stage fetches what urllib, the client of img2dataset, fetches: spellings of URLs, and answers of a local server.

What only one of the two gets is on a list, with the reason.
"""

import asyncio
import gzip
import socket
import time
import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from yarl import URL

from pipeline.stages.download import stage
from pipeline.stages.download.addresses import parse_url
from pipeline.stages.download.fetch import MAX_LINE, TolerantHandler
from pipeline.stages.download.stage import Download
from tests.patience import PATIENCE_S
from tests.pipeline.stages.download.rows import config, reasons, table
from tests.pipeline.stages.download.server import jpeg
from tests.pipeline.stages.download.test_verdicts import serve

BODY: Final = jpeg()
TYPE: Final = "Content-Type: image/jpeg"
LENGTH: Final = f"Content-Length: {len(BODY)}"
CLOSE: Final = "Connection: close"


def head(*lines: str, status: str = "HTTP/1.1 200 OK", end: str = "\r\n") -> bytes:
    return (end.join([status, *lines, "", ""])).encode("latin-1")


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def with_body(*lines: str, status: str = "HTTP/1.1 200 OK", body: bytes = BODY, end: str = "\r\n") -> bytes:
    return head(TYPE, *lines, f"Content-Length: {len(body)}", status=status, end=end) + body


def chunked(*lines: str, size: str = "{:x}", trailer: str = "") -> bytes:
    parts = [BODY[:100], BODY[100:], b""]
    framed = b"".join(size.format(len(part)).encode() + b"\r\n" + part + b"\r\n" * bool(part) for part in parts)
    return head(TYPE, *lines) + framed + trailer.encode() + b"\r\n"


ENCODED: Final = {"Content-Encoding: gzip": gzip.compress(BODY), "Content-Encoding: deflate": zlib.compress(BODY)}
GZ: Final = gzip.compress(BODY)
ANSWERS: Final = {
    "plain": with_body(),
    # heads
    **{f"a header of {n} KB": with_body("X-Long: " + "x" * (n * 1000)) for n in (9, 32, 60)},
    "a policy of 12 KB": with_body("Content-Security-Policy: " + "img-src https://a.example; " * 450),
    "a cookie of 20 KB": with_body("Set-Cookie: a=" + "b" * 20_000),
    "ninety headers": with_body(*(f"X-{i}: {i}" for i in range(90))),
    "ninety cookies": with_body(*(f"Set-Cookie: a{i}={'b' * 2000}" for i in range(90))),
    "three hundred headers": with_body(*(f"X-{i}: {i}" for i in range(300))),
    "a header of 70 KB": with_body("X-Long: " + "x" * 70_000),
    "a long reason": with_body(status="HTTP/1.1 200 " + "fine " * 2000),
    "no reason": with_body(status="HTTP/1.1 200"),
    "no reason, a blank": with_body(status="HTTP/1.1 200 "),
    "another reason": with_body(status="HTTP/1.1 200 Très bien"),
    "two blanks in the status line": with_body(status="HTTP/1.1  200  OK"),
    "a tab in the status line": with_body(status="HTTP/1.1\t200 OK"),
    "a blank behind the status line": with_body(status="HTTP/1.1 200 OK "),
    "HTTP/1.0": with_body(status="HTTP/1.0 200 OK"),
    "HTTP/1.2": with_body(status="HTTP/1.2 200 OK"),
    "HTTP/2.0 as text": with_body(status="HTTP/2.0 200 OK"),
    "Shoutcast": with_body(status="ICY 200 OK"),
    "line ends of LF": with_body("X: y", end="\n"),
    "a blank before the colon": with_body("X : y"),
    "a blank before the colon of the length": head(TYPE, f"Content-Length : {len(BODY)}", CLOSE) + BODY,
    "a tab before the colon": with_body("X\t: y"),
    "no blank behind the colon": with_body("X:y"),
    "no value": with_body("X:"),
    "a name with blanks": with_body("X Y: z"),
    "a name with brackets": with_body("X[1]: z"),
    "a name with umlauts": with_body("Gr\xfc\xdfe: z"),
    "no name": with_body(": z"),
    "no colon": with_body("nonsense"),
    "no colon, kept open": head(TYPE, LENGTH, "nonsense") + BODY,
    "a folded line": with_body("X: y", " z"),
    "a folded line with a tab": with_body("X: y", "\tz", "\tz"),
    "a folded length": head(TYPE, "Content-Length:", f" {len(BODY)}", CLOSE) + BODY,
    "a folded first line": head(" X: y", TYPE, LENGTH, CLOSE) + BODY,
    "Latin-1 in a value": with_body("X: caf\xe9"),
    "UTF-8 in a value": with_body("X: caf\xc3\xa9"),
    "a control in a value": with_body("X: a\x01b"),
    "a NUL in a value": with_body("X: a\0b"),
    "a CR in a value": with_body("X: a\rb"),
    "DEL in a value": with_body("X: a\x7fb"),
    "names in capitals": head("CONTENT-TYPE: IMAGE/JPEG", f"CONTENT-LENGTH: {len(BODY)}") + BODY,
    "names in lower case": head("content-type: image/jpeg", f"content-length: {len(BODY)}") + BODY,
    "two types": with_body("Content-Type: text/html"),
    "two dates": with_body("Date: x", "Date: y"),
    "two servers": with_body("Server: x", "Server: y"),
    "no type": head(LENGTH) + BODY,
    "type of a page": head("Content-Type: text/html", LENGTH) + BODY,
    "an upgrade": with_body("Upgrade: h2,h2c", "Connection: Upgrade"),
    "keep-alive twice": with_body("Connection: keep-alive", "Connection: Keep-Alive"),
    "connection of nonsense": with_body("Connection: nonsense"),
    # lengths
    "equal lengths": head(TYPE, LENGTH, LENGTH) + BODY,
    "three equal lengths": head(LENGTH, TYPE, LENGTH, "X: y", LENGTH.lower()) + BODY,
    "equal lengths in a line": head(TYPE, f"{LENGTH}, {len(BODY)}", CLOSE) + BODY,
    "a length with zeros": head(TYPE, f"Content-Length: 000{len(BODY)}") + BODY,
    "a length with a plus": head(TYPE, f"Content-Length: +{len(BODY)}") + BODY,
    "a length of a word": head(TYPE, "Content-Length: chunked", CLOSE) + BODY,
    "a negative length": head(TYPE, "Content-Length: -1", CLOSE) + BODY,
    "an empty length": head(TYPE, "Content-Length:", CLOSE) + BODY,
    "a length and a blank": head(TYPE, LENGTH + "  ") + BODY,
    "a length behind tabs": head(TYPE, f"Content-Length:\t\t{len(BODY)}") + BODY,
    "different lengths": head(TYPE, LENGTH, f"Content-Length: {len(BODY) + 7}", CLOSE) + BODY,
    "different lengths, the first too long": head(TYPE, f"Content-Length: {len(BODY) + 7}", LENGTH, CLOSE) + BODY,
    "no length": head(TYPE, CLOSE) + BODY,
    "no length, HTTP/1.0": head(TYPE, status="HTTP/1.0 200 OK") + BODY,
    "no length, no word of closing": head(TYPE) + BODY,
    "no length, keep-alive": head(TYPE, "Connection: keep-alive") + BODY,
    "a length too short by nothing": with_body(CLOSE),
    "a length and bytes behind": head(TYPE, LENGTH) + BODY + b"\r\n",
    "a length and much behind": head(TYPE, LENGTH, CLOSE) + BODY + b"x" * 5000,
    "a body that is cut": head(TYPE, f"Content-Length: {len(BODY) + 100}", CLOSE) + BODY,
    # transfer encodings
    "chunked": chunked("Transfer-Encoding: chunked"),
    "Chunked": chunked("Transfer-Encoding: Chunked"),
    "chunked and a length": chunked("Transfer-Encoding: chunked", "Content-Length: 5"),
    "a length and chunked": chunked("Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunked twice": chunked("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunked with blanks": chunked("Transfer-Encoding: chunked", size="{:x}  "),
    "chunked with zeros": chunked("Transfer-Encoding: chunked", size="{:08x}"),
    "chunked in capitals": chunked("Transfer-Encoding: chunked", size="{:X}"),
    "chunked with extensions": chunked("Transfer-Encoding: chunked", size="{:x};a=b"),
    "chunked with a trailer": chunked("Transfer-Encoding: chunked", trailer="X: y\r\n"),
    "chunked, HTTP/1.0": chunked("Transfer-Encoding: chunked").replace(b"1.1", b"1.0", 1),
    "chunked, cut off": chunked("Transfer-Encoding: chunked", CLOSE)[:-40],
    "chunked without an end": chunked("Transfer-Encoding: chunked", CLOSE)[:-5],
    **{f"chunked with {name}": chunked("Transfer-Encoding: chunked").replace(b"\r\n64\r\n", b"\r\n" + line)
       for name, line in {"a size and LF": b"64\n", "a size behind a blank": b" 64\r\n", "0x": b"0x64\r\n", "+": b"+64\r\n",
                          "an odd extension": b"64 ; \0=\xff\r\r\n", "no size": b"\r\n64\r\n", "a word": b"many\r\n"}.items()},
    "chunked with LF": chunked("Transfer-Encoding: chunked").replace(b"\r\n64\r\n", b"\r\n64\n").replace(b"\r\n0\r\n\r\n", b"\n0\n\n"),
    "chunked with an odd trailer": chunked("Transfer-Encoding: chunked", trailer="X Y : z\r\nnonsense\r\n"),
    "chunked with a long trailer": chunked("Transfer-Encoding: chunked", trailer="X: " + "y" * 9000 + "\r\n"),
    "chunked without the last blank line": chunked("Transfer-Encoding: chunked")[:-2],
    "chunks of a wrong size": chunked("Transfer-Encoding: chunked").replace(b"\r\n64\r\n", b"\r\n63\r\n"),
    "xchunked": with_body("Transfer-Encoding: xchunked"),
    "chunked, but plain": with_body("Transfer-Encoding: chunked"),
    "an encoding without a name": with_body("Transfer-Encoding:"),
    "a length of 5000 digits": head(TYPE, "Content-Length: " + "9" * 5000, CLOSE) + BODY,
    "206 with a range of 5000 digits": with_body(f"Content-Range: bytes 0-{'9' * 5000}/*", status="HTTP/1.1 206 P"),
    "identity and a length": with_body("Transfer-Encoding: identity"),
    "identity": head(TYPE, "Transfer-Encoding: identity", CLOSE) + BODY,
    # content encodings
    **{f"{name}, but plain": with_body(f"Content-Encoding: {name}")
       for name in ("gzip", "x-gzip", "deflate", "br", "zstd", "compress", "identity", "none", "utf-8", "image/jpeg", "binary",
                    "gzip, gzip", "aws-chunked", "8bit", "")},
    "gzip": with_body("Content-Encoding: gzip", body=GZ),
    "x-gzip": with_body("Content-Encoding: X-GZIP", body=GZ),
    "gzip, identity": with_body("Content-Encoding: gzip, identity", body=GZ),
    "identity, gzip": with_body("Content-Encoding: identity,gzip", body=GZ),
    "gzip in two lines": with_body("Content-Encoding: gzip", "Content-Encoding: identity", body=GZ),
    "gzip twice": with_body("Content-Encoding: gzip, gzip", body=gzip.compress(GZ)),
    "gzip twice, named once": with_body("Content-Encoding: gzip", body=gzip.compress(GZ)),
    "gzip, not named": with_body(body=GZ),
    "gzip named twice": with_body("Content-Encoding: gzip", "Content-Encoding: gzip", body=GZ),
    "gzip in two members": with_body("Content-Encoding: gzip", body=gzip.compress(BODY[:99]) + gzip.compress(BODY[99:])),
    "gzip and bytes behind": with_body("Content-Encoding: gzip", body=GZ + b"\0" * 20),
    "gzip without its sum": with_body("Content-Encoding: gzip", body=GZ[:-8]),
    "deflate": with_body("Content-Encoding: deflate", body=zlib.compress(BODY)),
    "deflate, raw": with_body("Content-Encoding: deflate", body=raw_deflate(BODY)),
    "deflate, gzip": with_body("Content-Encoding: deflate, gzip", body=gzip.compress(zlib.compress(BODY))),
    "deflate named gzip": with_body("Content-Encoding: gzip", body=zlib.compress(BODY)),
    "gzip named deflate": with_body("Content-Encoding: deflate", body=GZ),
    "chunked gzip": chunked("Transfer-Encoding: chunked").replace(b"image/jpeg", b"image/jpeg\r\nContent-Encoding: gzip", 1),
    # statuses
    **{f"status {n}": with_body(status=f"HTTP/1.1 {n} X") for n in (201, 202, 203, 206, 207, 226, 250, 299)},
    "status 204": head(TYPE, status="HTTP/1.1 204 No Content"),
    "status 205": head(TYPE, "Content-Length: 0", status="HTTP/1.1 205 Reset"),
    "206 with the whole range": with_body(f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}", status="HTTP/1.1 206 P"),
    "206 with a range of unknown size": with_body(f"Content-Range: bytes 0-{len(BODY) - 1}/*", status="HTTP/1.1 206 P"),
    "206 with a part": with_body(f"Content-Range: bytes 0-{len(BODY) - 1}/999999", status="HTTP/1.1 206 P"),
    **{f"status {n}": with_body(status=f"HTTP/1.1 {n} X") for n in (300, 304, 400, 403, 404, 410, 500, 600)},
    "100 before it": head(status="HTTP/1.1 100 Continue") + with_body(),
    "103 before it": head("Link: </a>; rel=preload", status="HTTP/1.1 103 Early Hints") + with_body(),
    "103 with an odd header": head("X : y", "nonsense", status="HTTP/1.1 103 Early Hints") + with_body("X : y"),
    "a page": with_body(body=b"<html>no picture</html>"),
    "nothing": head(TYPE, "Content-Length: 0"),
    # redirects
    **{f"{n} to a path": head("Location: /exact/to", "Content-Length: 0", status=f"HTTP/1.1 {n} X")
       for n in (301, 302, 303, 307, 308)},
    "302 with a body": with_body("Location: /exact/to", status="HTTP/1.1 302 X"),
    "302 without a length": head("Location: /exact/to", CLOSE, status="HTTP/1.1 302 X"),
    "302 without Location": head("Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 to nothing": head("Location:", "Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 to http:/path": head("Location: http:/exact/to", "Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 to HTTP:///path": head("Location: HTTP:///exact/to", "Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 to http:path": head("Location: http:exact/to", "Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 to https:/path": head("Location: https:/exact/to", "Content-Length: 0", status="HTTP/1.1 302 X"),
    "302 with URI": head("URI: /exact/to", "Content-Length: 0", status="HTTP/1.1 302 X"),
}  # fmt: skip

AS_WRITTEN: Final = (
    *("/0/smart/http%3A%2F%2Fcdn.example%2Fa.jpg", "/1.jpg?X-Goog-Credential=me%40p%2F2024%2Fauto&sig=ab%2Fcd"),
    *("/w_600%2Ch_400.jpg", "/caf%e9.jpg", "/caf%C3%a9.jpg", "/%7Eann/a%27b.jpg", "/a%28b%29.jpg", "/100%.jpg", "/100%"),
    *("/7.jpg?a[]=1&b={2}", "/8.jpg?", "/a%2Fb.jpg", "/a%2fb%5c.jpg", "/%zz.jpg", "/%2", "/a?x=%", "/a?x=%2", "/a?x=%zz"),
    *("/a+b.jpg", "/a?x=a+b", "/a?x=a%20b", "/a?x=a%2Bb", "/a%20b.jpg", "/a%09b.jpg", "/a%00b.jpg", "/a?x=%0D%0Ab"),
    *("/a//b.jpg", "//a.jpg", "/./a.jpg", "/a/./b.jpg", "/a/../b.jpg", "/../a.jpg", "/a/..", "/a/.", "/.", "/a/b/", "/..a"),
    *("/%2e%2e/a.jpg", "/%2E/a.jpg", "/a;b.jpg", "/a;b;c=d/e;.jpg", "/a.jpg;", "/a,b.jpg", "/a:b.jpg", "/a@b.jpg", "/@a"),
    *("/a'b.jpg", '/a"b.jpg', "/a(b).jpg", "/a[b].jpg", "/a{b}.jpg", "/a|b.jpg", "/a\\b.jpg", "/\\a.jpg", "/a^b.jpg"),
    *("/a`b.jpg", "/a<b>.jpg", "/a!b*c$d&e=f~g_h-i.jpg", "/a~b", "/%7e", "/%41%42", "/a%3Fb", "/a%23b", "/a%25b", "/a%2525b"),
    *("/a?", "/a??", "/a?b?c", "/a?b=c&", "/a?&b", "/a?b&&c", "/a?b==c", "/a?=", "/a?/b/../c", "/a?http://x/y", "/a?x=y;z"),
    *("/a?x=\\", '/a?x="y"', "/a?x='y'", "/a?x=<y>", "/a?x=y|z", "/a?x=[y]", "/a?x={y}", "/a?x=y^z", "/a?x=`y`", "/a?x=,:@!$()*"),
    *("/a?x=%2C%3a%40%21%24%28%29%2A%2F%3F", "/a?%78=y", "/a?x=%7E", "/a?sig=aB%2b%2F%3D%3D&e=1", "/a?x=y#".rstrip("#")),
    *("/f_auto,q_auto/v1/a.jpg", "/v1/fill/w_1,h_2,al_c/a~mv2.jpg/v1/b%2C.jpg", "/rs:fit:300/plain/http://o.test/a.jpg@webp"),
    *("/a.jpg?exp=1~acl=/*~hmac=0f", "/a?x=%E4%BD%A0", "/%E4%BD%a0.jpg", "/a?x=%ff", "/" + "a" * 3000, "/a?" + "b%2C" * 500),
    *("/A/B.JPG", "/a.jpg?X=Y", "/0", "/a?0", "/a&amp;b.jpg", "/a?b&amp;c", "/;", "/;?", "/?", "/?a", "/a%", "/a?%25", "/=", "/&"),
)  # fmt: skip
ESCAPED: Final = {
    "/a b.jpg": "/a%20b.jpg",
    "/a?x=a b": "/a?x=a%20b",
    "/caf\u00e9.jpg": "/caf%C3%A9.jpg",
    "/\u4f60.jpg?x=\u4f60%2C": "/%E4%BD%A0.jpg?x=%E4%BD%A0%2C",
    "/a\x01b.jpg": "/a%01b.jpg",
    "/a\x7fb.jpg": "/a%7Fb.jpg",
    "/a\u00a0b.jpg": "/a%C2%A0b.jpg",
    "/a\U0001f600.jpg": "/a%F0%9F%98%80.jpg",
}  # fmt: skip
"""What HTTP cannot carry, and what is sent for it."""


def targets() -> dict[str, str]:
    """What is sent for each spelling, without a fragment."""
    return {text: text for text in AS_WRITTEN} | ESCAPED


def answer(connection: socket.socket, _: int, path: str) -> None:
    """Answer a request: /answer/INDEX by ANSWERS, /to/INDEX by a redirect, /exact/... only in an expected spelling."""
    if path.startswith("/to/"):
        target = list(targets())[int(path.removeprefix("/to/"))].encode(errors="surrogateescape")
        connection.sendall(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: /exact" + target + b"\r\n\r\n")
        return
    if path.startswith("/answer/") and path != "/answer/exact/to":
        reply = list(ANSWERS.values())[int(path.removeprefix("/answer/"))]
        connection.sendall(reply)
        connection.shutdown(socket.SHUT_WR)  # so that urllib does not wait where it knows no length
        return
    is_known = path.removeprefix("/exact") in {*targets().values(), "/to"}
    connection.sendall(with_body() if is_known else with_body(status="HTTP/1.1 403 Other spelling"))


def by_urllib(url: str) -> bool:
    """True if urllib gets the picture."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return bool(response.read().startswith(BODY))
    except Exception:
        return False


def by_both(urls: Iterable[str]) -> tuple[list[bool], list[str | None]]:
    """Whether urllib gets each URL, and what drops it in the stage."""
    urls = list(urls)
    with ThreadPoolExecutor(16) as pool:
        theirs = list(pool.map(by_urllib, urls))
    rows = Download(config(concurrency_per_host=64, host_failures=1000))(table(*urls)).to_pylist()
    ours = [None if row["reason"] in (None, "duplicate") else f"{row['reason']}: {row['detail']}" for row in rows]
    return theirs, ours


INFLATED: Final = "the stage decompresses, and img2dataset drops it"
ONLY_THE_STAGE: Final = {
    "three hundred headers": "urllib counts them, the stage their bytes",
    "HTTP/2.0 as text": "the answer has the form of HTTP/1.1",
    "chunked with LF": "curl accepts a line that ends with LF, urllib only that of a size",
    "103 before it": "urllib knows the code 100 only",
    "103 with an odd header": "urllib knows the code 100 only",
    **dict.fromkeys((*(name for name in ANSWERS if name.startswith(("gzip", "x-gzip", "deflate")) and "plain" not in name),
                     "identity, gzip", "a length of gzip"), INFLATED),
    **dict.fromkeys(ESCAPED, "urllib refuses what HTTP cannot carry; browsers and curl escape it"),
}  # fmt: skip
ONLY_URLLIB: Final = {
    "different lengths": "where the body ends is not certain (RFC 9110, section 8.6)",
    "206 with a part": "a part of a picture is no picture",
    "302 with URI": "a header that no browser follows",
    "302 to http:path": "urllib puts a slash before the path; it is relative to the path of the URL (RFC 3986, section 5.2.2)",
    "302 to HTTP:///path": "no host; browsers take the first name of the path for it",
}
"""What is refused on purpose."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serve(answer) as found:
        yield found


def test_answers_that_urllib_accepts_are_accepted(port: int) -> None:
    theirs, drops = by_both(f"http://127.0.0.1:{port}/answer/{i}" for i in range(len(ANSWERS)))
    found = dict(zip(ANSWERS, zip(theirs, drops, strict=True), strict=True))
    only_urllib = {name: drop for name, (gets, drop) in found.items() if gets and drop is not None}
    assert only_urllib.keys() == ONLY_URLLIB.keys(), only_urllib
    assert {name for name, (gets, drop) in found.items() if not gets and drop is None} <= ONLY_THE_STAGE.keys()
    wanted = {name for name in ANSWERS if name.startswith(("gzip", "x-gzip", "deflate", "identity", "chunked g"))}
    assert {name for name in wanted if found[name][1] is not None} == set()


def test_urls_are_sent_as_they_are_written(port: int) -> None:
    names = list(targets())
    theirs, drops = by_both(f"http://127.0.0.1:{port}/exact{name}" for name in names)
    assert {name: drop for name, drop in zip(names, drops, strict=True) if drop is not None} == {}
    assert {name for name, gets in zip(names, theirs, strict=True) if not gets} == ESCAPED.keys()
    assert len(ANSWERS) + len(names) >= 250


def test_redirects_are_followed_as_they_are_written(port: int) -> None:
    names = list(targets())
    rows = Download(config())(table(*(f"http://127.0.0.1:{port}/to/{i}" for i in range(len(names))))).to_pylist()
    assert {name: row["detail"] for name, row in zip(names, rows, strict=True) if row["reason"] is not None} == {}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("c.jpg?", "http://h.test/a/c.jpg?"),
        ("../c%2C/../d;", "http://h.test/d;"),
        ("?y=%7E", "http://h.test/a/b;c?y=%7E"),
        ("//o.test/%7e/../x", "http://o.test/%7e/../x"),
        ("HTTPS://O.test:443/%7e#f", "https://o.test/%7e"),
        ("/caf\udce9 1.jpg", "http://h.test/caf%E9%201.jpg"),
        ("\\\\o.test/x", "http://h.test/a/\\\\o.test/x"),
        ("/\\o.test/x", "http://h.test/\\o.test/x"),
    ],
)
def test_a_redirect_keeps_its_spelling(reference: str, expected: str) -> None:
    assert str(parse_url(reference, URL("http://h.test/a/b;c?x=1", encoded=True))) == expected


def test_endless_headers_end_the_attempt() -> None:
    def flood(connection: socket.socket, *_: object) -> None:
        connection.sendall(head("X: " + "y" * 50_000, end="\r\n")[:-2])
        for _ in range(100):
            connection.sendall(b"Y: " + b"z" * 50_000 + b"\r\n")

    with serve(flood) as port:
        (row,) = Download(config(retries=0))(table(f"http://127.0.0.1:{port}/")).to_pylist()
    assert (row["reason"], row["detail"]) == ("connection_error", "no valid HTTP: more than 300000 bytes of headers")


def test_a_head_in_parts_and_a_second_request_on_its_connection_are_read() -> None:
    def slow(connection: socket.socket, *_: object) -> None:
        reply = with_body("X : y") + b"\r\n"
        for part in (reply[:10], reply[10:60], reply[60:]):
            connection.sendall(part)
            time.sleep(0.02)

    with serve(slow) as port:
        found = Download(config(concurrency=1))(
            table(*(f"http://127.0.0.1:{port}/{i}" for i in range(3)), "http://[::1")
        )
    assert reasons(found) == [None, None, None, "invalid_url"]


CHUNKED: Final = {
    name: reply for name, reply in ANSWERS.items() if b"ransfer-Encoding: chunked" in reply and "gz" not in name
}
FAULTS: Final = {
    "chunked with no size": "Invalid character in chunk size",
    "chunked with a word": "Invalid character in chunk size",
    "chunks of a wrong size": "Expected LF after chunk data",
    "chunked, but plain": "Invalid character in chunk size",
}


def test_an_error_of_a_body_ends_the_attempt_with_its_message() -> None:
    replies = [ANSWERS[name] for name in FAULTS]
    replies.append(head("Transfer-Encoding: chunked") + b"5" * (MAX_LINE + 1))
    replies.append(head("Transfer-Encoding: chunked") + b"f" * 20 + b"\n")

    def apart(connection: socket.socket, _: int, path: str) -> None:
        begin, blank, body = replies[int(path[1:])].partition(b"\r\n\r\n")
        for part in (begin + blank, body):
            connection.sendall(part)
            time.sleep(0.02)

    with serve(apart) as port:
        rows = Download(config())(table(*(f"http://127.0.0.1:{port}/{i}" for i in range(len(replies))))).to_pylist()
    details = [*FAULTS.values(), f"more than {MAX_LINE} bytes in the line of a chunk", "Chunk size overflow"]
    assert [(row["reason"], row["detail"]) for row in rows] == [
        ("connection_error", f"no valid HTTP: {detail}") for detail in details
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
def test_answers_on_one_connection_are_read_in_parts_of_any_size(size: int) -> None:
    async def read(reply: bytes, handler: TolerantHandler) -> bytes:
        handler.set_response_params(read_until_eof=True)
        for start in range(0, len(reply), size):
            handler.data_received(reply[start : start + size])
        _, payload = await handler.read()
        return await payload.read()

    async def read_all() -> tuple[list[str], set[str]]:
        handler, wrong, closing = TolerantHandler(asyncio.get_running_loop()), [], set()
        for name, reply in (CHUNKED | {"a length": with_body()}).items():
            if name not in FAULTS and "cut" not in name and "without an end" not in name:
                wrong += [name] * (await asyncio.wait_for(read(reply, handler), PATIENCE_S) != BODY)
                if handler.should_close:
                    closing.add(name)
                    handler = TolerantHandler(asyncio.get_running_loop())
        return wrong, closing

    wrong, closing = asyncio.run(read_all())
    assert wrong == []
    expected = {
        "chunked, HTTP/1.0",
        "chunked with LF",
        *(name for name in CHUNKED if "trailer" in name or "last" in name),
    }
    assert closing == expected if size > len(BODY) else closing >= expected


def test_connections_are_kept_where_the_end_of_an_answer_is_certain() -> None:
    names = ["plain", "chunked", "chunked with a size and LF", "302 to http:/path", "chunked and a length"]
    numbers = list[int]()

    def several(connection: socket.socket, n: int, path: str) -> None:
        numbers.append(n)
        reply = ANSWERS[names[int(path[1:])]] if path[1:].isdigit() else with_body()
        connection.sendall(reply)

    with serve(several) as port:
        found = Download(config(concurrency=1))(table(*(f"http://127.0.0.1:{port}/{i}" for i in range(len(names)))))
    assert (set(reasons(found)) <= {None, "duplicate"}, numbers) == (True, list(range(len(names) + 1)))


def test_a_large_body_with_bytes_behind_is_read_to_its_end() -> None:
    body = BODY + b"\0" * 3_000_000
    replies = [
        with_body(body=body) + b"x" * 1000,
        head(TYPE, "Transfer-Encoding: chunked") + b"%x\n%s\r\n0\n" % (len(body), body) + b"x" * 1000,
        with_body(body=body),
    ]

    with serve(lambda connection, _, path: connection.sendall(replies[int(path[1:])])) as port:
        rows = Download(config(concurrency=1))(table(*(f"http://127.0.0.1:{port}/{i}" for i in range(3))))
    assert set(reasons(rows)) <= {None, "duplicate"}


def test_rows_with_one_url_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []

    def count(connection: socket.socket, _: int, path: str) -> None:
        paths.append(path)
        connection.sendall(with_body())

    with serve(count) as port:
        base = f"http://127.0.0.1:{port}"
        rows = table(*[f"{base}/a.jpg"] * 5, f"{base}/a.jpg#b", f"{base}/a.jpg?")
        found = Download(config()).prepare(rows).to_pylist()
        assert sorted(paths) == ["/a.jpg", "/a.jpg?"]
        assert len({row["image"] for row in found}) == 1

        def fail(*_: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(stage, "prepare_image", fail)
        _, faults = Download(config()).isolate(rows)
    assert [fault.key for fault in faults] == [f"{i:012d}" for i in range(7)]
