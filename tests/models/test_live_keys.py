"""The key of a model in a file of SECRETS_DIR: a new one is used without a restart, and only the model is told it."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr, ValidationError
from starlette.responses import Response
from structlog.testing import capture_logs

from segue.config import Settings
from segue.models.open_models import provider_options
from segue.models.providers.endpoint import with_live_key
from segue.secret_files import SecretFiles
from tests.support.logs import awaiting
from tests.support.provider import Provider, raw, says
from tests.support.service import running

OLD, NEW = "canary-old-0123456789", "canary-new-0123456789"  # of no form by which a secret is known


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "secrets").mkdir()
    (made / "OPENAI_API_KEY").write_text(f"{OLD}\n")
    return made


@pytest.fixture
def rotated(settings: Settings, folder: Path) -> Settings:
    return settings.model_copy(update={"secrets_dir": folder, "openai_api_key": SecretStr(OLD), "planning": "never"})


class Lock:
    """A provider that takes one key, and repeats the others in its refusal."""

    def __init__(self, provider: Provider) -> None:
        self.takes = OLD
        self.sent: list[str] = []
        self._provider = provider
        provider.always("hello", self.answer)

    async def answer(self, _: dict[str, Any]) -> Response:
        self.sent.append(self._provider.headers[-1]["authorization"].removeprefix("Bearer "))
        if self.sent[-1] == self.takes:
            return says("hi")
        refusal = raw({"error": {"message": f"Incorrect API key provided: {self.sent[-1]}", "code": "invalid_api_key"}})
        refusal.status_code = 401
        return refusal


async def test_a_key_that_is_refused_is_looked_for_at_once_and_the_turn_goes_on_with_the_new_one(
    rotated: Settings, folder: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 3600)
    lock = Lock(provider)
    async with running(rotated) as client:
        session = await client.new_session()
        await client.chat(session, "hello")
        lock.takes = NEW
        refused = await client.send(session, "hello")
        assert (refused.status_code, "Check OPENAI_API_KEY." in refused.json()["detail"]) == (502, True)
        (folder / "OPENAI_API_KEY").write_text(NEW)
        with capture_logs() as logs:
            for _ in range(2):
                assert (await client.chat(session, "hello"))["message"]["content"] == "hi"
        lock.takes = "another"
        again = await client.send(session, "hello")
    assert lock.sent == [OLD, OLD, OLD, NEW, NEW, NEW]
    assert [event["names"] for event in logs if event["event"] == "secrets_read"] == [["OPENAI_API_KEY"]]
    for told in (refused.text, again.text, str(logs)):
        assert OLD not in told
        assert NEW not in told


async def test_a_file_that_changes_is_read_within_seconds_and_one_that_is_gone_keeps_the_key(
    rotated: Settings, folder: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 0.05)
    lock = Lock(provider)
    async with awaiting("secrets_read") as read, running(rotated) as client:
        session = await client.new_session()
        await client.chat(session, "hello")
        lock.takes = NEW
        (folder / "next").write_text(NEW)
        (folder / "next").replace(folder / "OPENAI_API_KEY")
        await read.wait()
        await client.chat(session, "hello")
        (folder / "OPENAI_API_KEY").unlink()
        await client.chat(session, "hello")
    assert lock.sent == [OLD, NEW, NEW]


async def test_a_key_of_the_environment_is_not_replaced_by_a_file(rotated: Settings, folder: Path) -> None:
    files = SecretFiles(folder)
    set_elsewhere = rotated.model_copy(update={"openai_api_key": SecretStr("sk-set-elsewhere")})
    for settings, live in ((rotated, True), (set_elsewhere, False)):
        assert (provider_options(settings, "gpt-5-mini", files).live_key is not None) is live


@pytest.mark.parametrize("header", ["Bearer {}", "{}"])
async def test_the_clients_of_libraries_send_the_key_as_it_is_now(rotated: Settings, folder: Path, header: str) -> None:
    files = SecretFiles(folder)
    options = provider_options(rotated, "gpt-5-mini", files)
    [hook] = with_live_key(options)
    (folder / "OPENAI_API_KEY").write_text(NEW)
    await files.look()
    request = httpx2.Request("POST", "http://127.0.0.1/", headers={"x-key": header.format(OLD), "x-other": f"{OLD}0"})
    await hook(request)
    assert (request.headers["x-key"], request.headers["x-other"]) == (header.format(NEW), f"{OLD}0")


def test_settings_are_taken_from_files_last_and_a_folder_that_is_none_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tavily_api_key").write_text("tvly-1")
    (folder / "not_a_setting").write_text("x")
    (folder / "ANTHROPIC_API_KEY").write_bytes(b"\xff\xfe")
    (folder / "GOOGLE_API_KEY").mkdir()
    monkeypatch.setenv("SECRETS_DIR", str(folder))
    settings = Settings(_env_file=None)
    assert settings.openai_api_key == SecretStr(OLD)
    assert settings.tavily_api_key == SecretStr("tvly-1")
    assert (settings.anthropic_api_key, settings.google_api_key) == (None, None)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    assert Settings(_env_file=None).openai_api_key == SecretStr("sk-of-the-environment")
    monkeypatch.setenv("SECRETS_DIR", str(folder / "OPENAI_API_KEY"))
    with pytest.raises(ValidationError, match="has to be a folder of files"):
        Settings(_env_file=None)
