"""Redis servers of a test: with TLS, as a replica, as a Sentinel."""

import asyncio
import shutil
import socket
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from segue.around.embedded.servers import redis_binary
from tests.support.logs import until

# The embedded Redis knows no TLS.
TLS_PROGRAM = next(iter(Path("/usr/bin").glob("redis-server")), None)
OPENSSL = shutil.which("openssl")
needs_tls = pytest.mark.skipif(not (TLS_PROGRAM and OPENSSL), reason="no redis-server with TLS, or no openssl")
SENTINEL = """
port {port}
bind 127.0.0.1
sentinel monitor kept 127.0.0.1 {primary} 1
sentinel down-after-milliseconds kept 200
sentinel failover-timeout kept 1000
"""
SENTINEL_WITH_TLS = """
port 0
tls-port {port}
bind 127.0.0.1
tls-cert-file server.pem
tls-key-file server.key
tls-ca-cert-file authority.pem
tls-auth-clients no
tls-replication yes
requirepass {sentinel_password}
sentinel monitor kept 127.0.0.1 {primary} 1
sentinel auth-pass kept {password}
"""
TLS_KEYS = ("--tls-cert-file", "server.pem", "--tls-key-file", "server.key", "--tls-auth-clients", "no")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@asynccontextmanager
async def redis_server(url: str, folder: Path, *options: str, program: Path | None = None) -> AsyncIterator[Process]:
    """Yields a server that answers at the URL and works in the folder."""
    command = (str(program or redis_binary()), *options)
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await until(lambda: _answers(url))
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _answers(url: str) -> bool:
    async with Redis.from_url(url, protocol=2) as redis:
        with suppress(RedisError):
            return bool(await redis.ping())
    return False


@asynccontextmanager
async def plain_server(port: int, folder: Path, *options: str) -> AsyncIterator[Process]:
    here = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", *options)
    async with redis_server(f"redis://127.0.0.1:{port}", folder, *here) as process:
        yield process


@asynccontextmanager
async def sentinel(folder: Path, primary: int) -> AsyncIterator[int]:
    """Yields the port of a Sentinel that watches the server at the port `primary`, under the name `kept`."""
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(SENTINEL.format(port=port, primary=primary), "utf-8")
    async with redis_server(f"redis://127.0.0.1:{port}", folder, str(config), "--sentinel"):
        yield port


@asynccontextmanager
async def sentinel_with_tls(folder: Path, *, passwords: tuple[str, str]) -> AsyncIterator[int]:
    """Yields the port of a Sentinel that watches a primary under the name `kept`. Both speak nothing but TLS, with the
    certificate `authority.pem` of the folder; the first password is the primary's, the other one the Sentinel's.
    """
    certify(folder)
    password, sentinel_password = passwords
    primary, port = free_port(), free_port()
    trusting = f"?ssl_ca_certs={folder / 'authority.pem'}"
    url = f"rediss://:{password}@127.0.0.1:{primary}/0{trusting}"
    here = ("--port", "0", "--tls-port", str(primary), "--bind", "127.0.0.1", "--save", "", "--requirepass", password)
    config = folder / "sentinel.conf"
    config.write_text(
        SENTINEL_WITH_TLS.format(port=port, primary=primary, password=password, sentinel_password=sentinel_password),
        "utf-8",
    )
    asking = f"rediss://:{sentinel_password}@127.0.0.1:{port}{trusting}"
    async with (
        redis_server(url, folder, *here, *TLS_KEYS, program=TLS_PROGRAM),
        redis_server(asking, folder, str(config), "--sentinel", program=TLS_PROGRAM),
    ):
        yield port


@asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[str]:
    """Yields the URL of a Redis that speaks nothing but TLS, with the certificate `authority.pem` of the folder."""
    certify(folder)
    port = free_port()
    here = ("--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", "")
    url = f"rediss://localhost:{port}/0"
    trusting = f"{url}?ssl_ca_certs={folder / 'authority.pem'}"
    async with redis_server(trusting, folder, *here, *TLS_KEYS, program=TLS_PROGRAM):
        yield url


def certify(folder: Path) -> None:
    """Makes `server.pem` and `server.key` for localhost and 127.0.0.1, and `authority.pem`, which has signed it. From
    Python 3.13 on a certificate has to say what it is for.
    """
    authority = ("-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "authority.key", "-out", "authority.pem")
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", *authority, "-addext", "keyUsage=critical,keyCertSign")
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    made = ("-x509", "-days", "2", "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.pem")
    _openssl(
        folder, "req", "-newkey", "rsa:2048", "-nodes", *made, "-CA", "authority.pem", "-CAkey", "authority.key", *names
    )


def _openssl(folder: Path, *arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], cwd=folder, check=True, capture_output=True)
