"""The plan of three steps from the README, killed with kill -9 and robbed of Redis while it waits."""

import mailbox
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from segue.around.embedded.server_urls import ServerUrls
from tests.support.commands import ROOT
from tests.support.mailbox import write_mailbox_config
from tests.support.service import Process


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "outbox.mbox"


@pytest.fixture
def process(servers: ServerUrls, database_url: str, tmp_path: Path) -> Iterator[Process]:
    config, _ = write_mailbox_config(tmp_path)
    started = Process({"DATABASE_URL": database_url, "REDIS_URL": servers.redis_url, "MCP_CONFIG": str(config)})
    yield started
    started.stop()


def start(process: Process) -> str:
    """The URL of the service, which by then has the tools of its mailbox."""
    ready = sum('"mcp_server_ready"' in line for line in process.log)
    url = process.start()
    process.wait_for("mcp_server_ready", times=ready + 1)
    return url


def converse(url: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(ROOT / "examples" / "plan-conversation.sh"), *arguments],
        env={**os.environ, "SEGUE": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sent(outbox: Path) -> list[mailbox.mboxMessage]:
    if not outbox.exists():
        return []
    with closing(mailbox.mbox(outbox, create=False)) as mails:
        return list(mails)


@pytest.mark.sweep
def test_a_plan_waits_through_kill_nine_and_goes_on_at_its_step_with_a_spoken_yes(
    process: Process, servers: ServerUrls, outbox: Path
) -> None:
    asked = converse(start(process), "ask")
    assert "[plan: waiting, complete, complete, waiting]" in asked
    assert "to: Marco Rossi" in asked
    session = asked.split()[-1]
    process.kill()
    with Redis.from_url(servers.redis_url, protocol=2) as redis:
        redis.flushall()
    url = start(process)
    assert "aspetta ancora il tuo sì" in converse(url, "reply", session, "grazie")
    assert sent(outbox) == []
    assert "[plan: completed, complete, complete, complete]" in converse(url, "reply", session, "va bene, grazie")
    [mail] = sent(outbox)
    assert mail["Subject"].startswith("Re: Consegna ordine")
    in_english = converse(url, "both", "en")
    assert "Shall I go ahead?" in in_english
    assert "[plan: completed, complete, complete, complete]" in in_english
    session = converse(url, "ask").split()[-1]
    assert "[plan: cancelled" in converse(url, "reply", session, "no")
    assert len(sent(outbox)) == 2
