import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from segue.net import http_client
from segue.net.addresses import IPAddress, NoSuchHost, NotPublic, allowed_for_operator, resolve_host
from segue.net.http_client import answer_of, checked_client, unchecked_client_arguments
from tests.support.patience import PATIENCE_S

HERE = "127.0.0.1"


def only_here(address: IPAddress) -> bool:
    """Stands in for `is_public`: this one loopback address plays the public internet."""
    return str(address) == HERE


class Names:
    """A resolver that gives its answers in turn and keeps giving the last."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(f"{host}:{port}")
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def host_echo(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Answers every request with the Host header it came with, and closes. Yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        host = next(line.partition(": ")[2] for line in head.splitlines() if line.lower().startswith("host: "))
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(host)}\r\nConnection: close\r\n\r\n{host}".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, HERE, 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def heard_requests(*, closes: bool = False) -> AsyncIterator[tuple[int, list[str]]]:
    """Answers every request with the number it has on its connection, which it `closes` afterwards without having said
    so. Yields its port, and what was asked for.
    """
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = 0
        with suppress(asyncio.IncompleteReadError):
            while number == 0 or not closes:
                heard.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
                number += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)
        writer.close()

    async with await asyncio.start_server(answer, HERE, 0) as server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.1",
        "0x7f.1",
        "2130706433",
        "017700000001",
        "0",
        "127。0。0。1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ],
)
async def test_every_spelling_of_loopback_is_refused_by_the_systems_own_resolver(host: str) -> None:
    async with host_echo() as port, checked_client() as client:
        with pytest.raises(NotPublic):
            await client.get(f"http://{host}:{port}/")


@pytest.mark.parametrize(
    ("host", "leads_to"),
    [
        ("localhost", "192.168.1.1"),
        ("localhost", "169.254.169.254"),
        ("localhost", "fd00::1"),
        ("inside.test", "192.168.1.1"),
        ("inside.test", HERE),
        ("192.168.1.1", "192.168.1.2"),
        ("169.254.169.254", "169.254.169.254"),
    ],
)
async def test_a_host_that_the_operator_wrote_leads_to_no_private_address_but_the_written_one(
    host: str, leads_to: str
) -> None:
    is_allowed = allowed_for_operator(host, allow_private=False)
    async with checked_client(resolve=Names([leads_to]), is_allowed=is_allowed) as client:
        with pytest.raises(NotPublic):
            await client.get(f"http://{host}/")


async def test_a_name_is_resolved_once_and_the_checked_address_is_dialled() -> None:
    names = Names([HERE], ["127.0.0.2"])
    async with host_echo() as port, checked_client(resolve=names, is_allowed=only_here) as client:
        answer = await client.get(f"http://shop.test:{port}/")
        assert (answer.text, names.asked) == (f"shop.test:{port}", [f"shop.test:{port}"])


async def test_a_name_that_moves_inside_after_its_first_answer_is_refused() -> None:
    names = Names([HERE], ["127.0.0.2"])
    async with host_echo() as port, checked_client(resolve=names, is_allowed=only_here) as client:
        await client.get(f"http://rebinding.test:{port}/")
        with pytest.raises(NotPublic):
            await client.get(f"http://rebinding.test:{port}/")


async def test_of_a_names_mixed_addresses_only_the_allowed_ones_are_dialled() -> None:
    names = Names(["127.0.0.2", "::1", HERE])
    async with host_echo() as port, checked_client(resolve=names, is_allowed=only_here) as client:
        assert (await client.get(f"http://mixed.test:{port}/")).status_code == httpx2.codes.OK


async def test_the_next_allowed_address_is_tried_where_one_does_not_answer() -> None:
    names = Names(["::1", HERE])
    async with host_echo() as port, checked_client(resolve=names, is_allowed=lambda _: True) as client:
        assert (await client.get(f"http://two.test:{port}/")).status_code == httpx2.codes.OK


@pytest.mark.parametrize("host", ["a" * 300, "a..b"])
async def test_what_is_no_name_is_no_host(host: str) -> None:
    async with checked_client() as client:
        with pytest.raises(NoSuchHost):
            await client.get(f"http://{host}/")


@pytest.mark.parametrize(("code", "error"), [(socket.EAI_NONAME, NoSuchHost), (socket.EAI_AGAIN, httpx2.ConnectError)])
async def test_a_resolver_that_does_not_answer_is_not_taken_for_a_host_that_is_not_there(
    code: int, error: type[Exception]
) -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        raise socket.gaierror(code, "no answer")

    async with checked_client(resolve=resolve) as client:
        with pytest.raises(error):
            await client.get("http://shop.test/")


async def test_a_resolver_that_says_nothing_is_waited_for_as_long_as_a_connection() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    async with (
        asyncio.timeout(PATIENCE_S),
        checked_client(resolve=resolve, timeout=httpx2.Timeout(None, connect=0.05)) as client,
    ):
        with pytest.raises(httpx2.ConnectError):
            await client.get("http://shop.test/")


async def test_others_go_on_while_a_body_of_many_tiny_pieces_is_read() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with await asyncio.start_server(say, HERE, 0) as server, httpx2.AsyncClient() as client:
        port = server.sockets[0].getsockname()[1]
        other = asyncio.create_task(take_turns())
        answer = await answer_of(client, client.build_request("GET", f"http://{HERE}:{port}/"), max_bytes=10_000)
        other.cancel()
    assert len(answer.content) == 10_000
    assert turns > 100


async def test_a_proxy_of_the_environment_is_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    async with host_echo() as port, checked_client(resolve=Names([HERE]), is_allowed=only_here) as client:
        assert (await client.get(f"http://shop.test:{port}/")).status_code == httpx2.codes.OK


@pytest.mark.parametrize(
    ("variables", "asked_by"),
    [
        ({}, "its server"),
        ({"http_proxy": "http://{proxy}"}, "proxy"),
        ({"all_proxy": "http://{proxy}"}, "proxy"),
        ({"http_proxy": "http://{proxy}", "no_proxy": "localhost"}, "its server"),
    ],
)
async def test_a_proxy_of_the_environment_is_obeyed_where_the_operator_says_what_is_asked(
    variables: Mapping[str, str], asked_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with heard_requests() as (port, direct), heard_requests() as (proxy, proxied):
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(proxy=f"{HERE}:{proxy}"))
        async with httpx2.AsyncClient(**unchecked_client_arguments()) as client:
            assert (await client.get(f"http://localhost:{port}/")).status_code == httpx2.codes.OK
    heard = [f"http://localhost:{port}/"] if asked_by == "proxy" else ["/"]
    assert (proxied if asked_by == "proxy" else direct) == heard
    assert len(direct) + len(proxied) == 1


async def test_a_connection_that_its_server_has_closed_is_not_used_again() -> None:
    async with (
        heard_requests(closes=True) as (port, heard),
        httpx2.AsyncClient(**unchecked_client_arguments()) as client,
    ):
        for _ in range(3):
            assert (await client.get(f"http://{HERE}:{port}/")).status_code == httpx2.codes.OK
    assert heard == ["/"] * 3


@pytest.mark.parametrize("size", [1, 50_000_000])
async def test_a_refusal_is_read_though_the_server_hangs_up_before_it_has_heard_the_whole_request(size: int) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large")
        await writer.drain()
        writer.transport.abort()

    async with (
        await asyncio.start_server(refuse, HERE, 0) as server,
        httpx2.AsyncClient(**unchecked_client_arguments()) as client,
    ):
        answer = await client.post(f"http://{HERE}:{server.sockets[0].getsockname()[1]}/", content=b"x" * size)
    assert (answer.status_code, answer.text) == (413, "too large")


async def test_a_reader_that_is_slower_than_its_server_gets_everything_and_holds_little_of_it() -> None:
    sent = 0

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 40000000\r\n\r\n")
        for _ in range(400):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000
        writer.close()

    async with (
        await asyncio.start_server(say, HERE, 0) as server,
        httpx2.AsyncClient(**unchecked_client_arguments()) as client,
    ):
        url = f"http://{HERE}:{server.sockets[0].getsockname()[1]}/"
        read, ahead = 0, 0
        async with client.stream("GET", url) as answer:
            async for piece in answer.aiter_bytes():
                read += len(piece)
                ahead = max(ahead, sent - read)
                await asyncio.sleep(0)
    assert read == sent == 40_000_000
    assert ahead < 20_000_000  # what is on its way is the kernel's


async def test_a_server_that_falls_silent_is_waited_for_as_long_as_the_client_says() -> None:
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nonly")
        await reader.read()
        writer.close()

    async with (
        asyncio.timeout(PATIENCE_S),
        await asyncio.start_server(begin, HERE, 0) as server,
        httpx2.AsyncClient(**unchecked_client_arguments(), timeout=httpx2.Timeout(None, read=0.05)) as client,
    ):
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(f"http://{HERE}:{server.sockets[0].getsockname()[1]}/")


async def test_a_connection_that_was_asked_before_is_asked_again() -> None:
    async with heard_requests() as (port, heard), httpx2.AsyncClient(**unchecked_client_arguments()) as client:
        for _ in range(3):
            answer = await client.get(f"http://{HERE}:{port}/")
    assert heard == ["/"] * 3
    assert answer.text == "3"  # requests of its connection


@pytest.mark.allow_hosts([HERE, "127.0.0.2"])
async def test_the_next_address_is_tried_soon_where_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_NEXT_ADDRESS_S", 0.05)
    async with host_echo() as port:
        with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
            silent.bind(("127.0.0.2", port))
            silent.listen(0)  # its queue is full with the first: more get no answer
            for each in (first, second):
                each.setblocking(False)
                each.connect_ex(silent.getsockname())
            names = Names(["127.0.0.2", HERE])
            patient = httpx2.Timeout(None)
            async with (
                asyncio.timeout(PATIENCE_S),
                checked_client(resolve=names, is_allowed=lambda _: True, timeout=patient) as client,
            ):
                assert (await client.get(f"http://two.test:{port}/")).status_code == httpx2.codes.OK


async def test_tls_is_verified_against_the_name_while_the_checked_address_is_dialled(tmp_path: Path) -> None:
    serving, trusting = certified("shop.test", tmp_path)
    names = Names([HERE])
    async with (
        host_echo(serving) as port,
        checked_client(resolve=names, is_allowed=only_here, tls=trusting) as client,
    ):
        assert (await client.get(f"https://shop.test:{port}/")).text == f"shop.test:{port}"
        with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"https://other.test:{port}/")


def certified(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's side of a certificate made for this test."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(pem + secret)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(folder / "server.pem")
    return serving, ssl.create_default_context(cadata=pem.decode())


def test_every_transport_error_of_httpcore2_has_its_name_in_httpx2() -> None:
    """The client translates by name; this fails if one of the libraries renames an error."""
    errors = {
        name: kind
        for name, kind in vars(httpcore2).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not httpcore2.ConnectionNotAvailable
    }
    assert "ConnectTimeout" in errors
    assert [name for name in errors if not issubclass(getattr(httpx2, name, object), httpx2.TransportError)] == []


async def test_names_that_nobody_answers_for_do_not_hold_up_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, ask, asked, answered = asyncio.get_running_loop(), socket.getaddrinfo, asyncio.Event(), threading.Event()

    def silent(host: str, *rest: Any, **options: Any) -> Any:
        if not host.endswith(".silent.example"):
            return ask(host, *rest, **options)
        loop.call_soon_threadsafe(asked.set)
        answered.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    async with checked_client() as client:
        names = (f"http://n{number}.silent.example/" for number in range(40))
        foreign = asyncio.gather(*map(client.get, names), return_exceptions=True)
        try:
            await asked.wait()
            async with asyncio.timeout(PATIENCE_S):
                assert {HERE, "::1"} & {*await resolve_host("localhost", 80)}
        finally:
            answered.set()
        assert {type(error) for error in await foreign} == {httpx2.ConnectError}


LOOKS_UP = """
import asyncio, contextlib, socket, threading
from segue.net.addresses import resolve_foreign_host
socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
with contextlib.suppress(TimeoutError):
    asyncio.run(asyncio.wait_for(resolve_foreign_host("silent.example", 80), 0.1))
"""


def test_a_name_that_nobody_answers_for_does_not_keep_a_process_from_its_end() -> None:
    subprocess.run([sys.executable, "-c", LOOKS_UP], check=True, timeout=PATIENCE_S)
