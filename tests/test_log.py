"""Logs: event names and fields, secrets blanked by the name of their key."""

import subprocess
import sys

import pytest

from segue.log import redact
from tests.support.commands import ROOT


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "api_key", "openai_api_key", "password", "client_secret", "token", "cookie"],
)
def test_a_field_whose_name_says_secret_is_blanked(key: str) -> None:
    assert redact(None, "info", {"event": "x", key: "canary"}) == {"event": "x", key: "[redacted]"}


@pytest.mark.parametrize("key", ["event", "input_tokens", "output_tokens", "turn_id", "session_id"])
def test_a_field_that_only_sounds_like_one_is_kept(key: str) -> None:
    assert redact(None, "info", {key: "kept"}) == {key: "kept"}


def test_a_secret_is_blanked_by_its_form_too_however_deep_it_stands() -> None:
    event = {"event": "x", "url": "redis://u:canary@host", "headers": {"Authorization": "canary"}}
    assert redact(None, "info", event) == {
        "event": "x",
        "url": "redis://u:[redacted]@host",
        "headers": {"Authorization": "[redacted]"},
    }


def test_a_secret_stands_neither_in_what_a_library_logs_nor_in_a_traceback() -> None:
    script = """
import logging, structlog
from segue.log import configure_logging, never_log

configure_logging(level="info", log_format="json")
never_log({"canary one"})
logging.getLogger("library").warning("says %s and Bearer canary-2-of-3", "canary one")
for log in (logging.getLogger("library"), structlog.get_logger()):
    try:
        raise ValueError("canary one at redis://user:canary3@host")
    except ValueError:
        log.exception("broke")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.count("[redacted]") >= 2 for line in done.stderr.splitlines()] == [True, True, True]
    assert "canary" not in done.stderr


@pytest.mark.sweep
def test_a_log_that_nobody_reads_stops_no_work() -> None:
    script = """
import logging, os, structlog
from segue.log import configure_logging

reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 2)
configure_logging(level="info", log_format="json")
structlog.get_logger().warning("nobody_hears_this")
logging.getLogger("somewhere").warning("nor this")
print("went on")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "went on\n"


@pytest.mark.sweep
def test_what_a_caller_wrote_does_not_steer_the_terminal() -> None:
    script = """
import structlog
from segue.log import configure_logging

configure_logging(level="info", log_format="console")
structlog.get_logger().info("request", path="/\\x1b[2Jgone\\x00", other="/plain", after="a b")
try:
    raise ValueError("two\\nlines")
except ValueError:
    structlog.get_logger().exception("broke")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert r"path=/\x1b[2Jgone\x00" in done.stderr
    assert "other=/plain" in done.stderr
    assert "after='a b'" in done.stderr
    assert "ValueError: two\nlines" in done.stderr
