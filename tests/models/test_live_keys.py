"""The key of a model in a file of SECRETS_DIR: a new one is used without a restart, and only the model is told it."""

import asyncio
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
from segue.secret_files import LiveKeys, SecretFiles
from tests.support.logs import awaiting
from tests.support.provider import Provider, fails, raw, says
from tests.support.service import running
from tests.support.sweeps import first

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
        (folder.parent / "next").write_text(NEW)  # in the folder it would be a secret too, and read as one
        (folder.parent / "next").replace(folder / "OPENAI_API_KEY")
        await read.wait()
        await client.chat(session, "hello")
        (folder / "OPENAI_API_KEY").unlink()
        await client.chat(session, "hello")
    assert lock.sent == [OLD, NEW, NEW]


async def test_a_key_of_the_environment_is_not_replaced_by_a_file(rotated: Settings, folder: Path) -> None:
    files = SecretFiles(folder)
    set_elsewhere = rotated.model_copy(update={"openai_api_key": SecretStr("sk-set-elsewhere")})
    before = [provider_options(settings, "gpt-5-mini", files) for settings in (rotated, set_elsewhere)]
    (folder / "OPENAI_API_KEY").write_text(NEW)
    await files.look()
    later = [provider_options(settings, "gpt-5-mini", files) for settings in (rotated, set_elsewhere)]
    assert [options.key for options in (*before, *later)] == [NEW, "sk-set-elsewhere"] * 2


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


KEYS = [f"canary-{number}-0123456789" for number in range(3)]
REFUSALS = {
    "a wrong key": (401, "invalid_api_key"),
    "no credit": (402, "insufficient_balance"),
    "no quota": (429, "insufficient_quota"),
    "limited": (429, "rate_limit_exceeded"),
}


class Keyring:
    """A provider that refuses each key as it is told to, and repeats it."""

    def __init__(self, provider: Provider) -> None:
        self.refuses: dict[str, tuple[int, str]] = {}
        self.sent: list[str] = []
        self._provider = provider
        provider.always("hello", self.answer)

    async def answer(self, _: dict[str, Any]) -> Response:
        self.sent.append(key := self._provider.headers[-1]["authorization"].removeprefix("Bearer "))
        if key not in self.refuses:
            return says("hi")
        status, code = self.refuses[key]
        refusal = raw({"error": {"message": f"No more for {key}.", "code": code}})
        refusal.status_code = status
        return refusal


@pytest.fixture
def with_keys(settings: Settings) -> Settings:
    keys = {"openai_api_key": SecretStr(", ".join(KEYS)), "planning": "never", "llm_max_retries": 0}
    return settings.model_copy(update=keys)


@pytest.mark.in_turns
@pytest.mark.parametrize("as_stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("status", "code"), first(2, REFUSALS.values()), ids=list(REFUSALS))
async def test_a_key_that_is_refused_is_left_out_and_the_next_of_the_list_is_asked(
    with_keys: Settings, provider: Provider, status: int, code: str, *, as_stream: bool
) -> None:
    ring = Keyring(provider)
    ring.refuses = {KEYS[0]: (status, code), KEYS[1]: (401, "invalid_api_key")}
    with capture_logs() as logs:
        async with running(with_keys) as client:
            session = await client.new_session()
            for _ in range(2):
                answer = await client.send(session, "hello", stream=as_stream)
                assert (answer.status_code, '"content":"hi"' in answer.text) == (200, True)
    assert ring.sent == [*KEYS, KEYS[2]]
    left_out = [(each["setting"], each["key"]) for each in logs if each["event"] == "model_key_left_out"]
    assert left_out == [("OPENAI_API_KEY", 1), ("OPENAI_API_KEY", 2)]
    assert not any(key in str(logs) for key in KEYS)


async def test_if_every_key_is_refused_each_is_asked_once_and_the_next_message_asks_again(
    with_keys: Settings, provider: Provider
) -> None:
    ring = Keyring(provider)
    ring.refuses = dict.fromkeys(KEYS, (401, "invalid_api_key"))
    async with running(with_keys) as client:
        session = await client.new_session()
        refused = await client.send(session, "hello")
        ring.refuses.clear()
        assert (await client.chat(session, "hello"))["message"]["content"] == "hi"
    assert (refused.json()["code"], refused.json()["provider_code"]) == ("model_unavailable", "invalid_api_key")
    assert not any(key in refused.text for key in KEYS)
    assert ring.sent == [*KEYS, KEYS[0]]


async def test_an_answer_that_began_before_its_key_was_refused_does_not_bring_the_key_back(
    with_keys: Settings, provider: Provider
) -> None:
    ring, gate = Keyring(provider), asyncio.Event()

    async def long(_: dict[str, Any]) -> Response:
        await gate.wait()
        return says("at last")

    provider.always("a long one", long)
    async with running(with_keys) as client:
        one, other = [await client.new_session() for _ in range(2)]
        answering = asyncio.create_task(client.chat(one, "a long one"))
        await provider.wait_for_requests(1)
        ring.refuses = {KEYS[0]: (429, "rate_limit_exceeded")}
        await client.chat(other, "hello")
        gate.set()
        assert (await answering)["message"]["content"] == "at last"
        await client.chat(other, "hello")
    assert ring.sent == [KEYS[0], KEYS[1], KEYS[1]]


async def test_what_a_filter_refuses_under_the_status_of_a_key_leaves_the_keys_in_use(
    with_keys: Settings, provider: Provider
) -> None:
    flagged = fails(403, body='{"error": {"code": 403, "message": "Your input was flagged for violence"}}')
    provider.will(flagged, says("hi"))
    async with running(with_keys) as client:
        session = await client.new_session()
        refused = await client.send(session, "flagged")
        assert (await client.chat(session, "polite"))["message"]["content"] == "hi"
    assert (refused.status_code, "content filter" in refused.json()["detail"]) == (502, True)
    assert {headers["authorization"] for headers in provider.headers} == {f"Bearer {KEYS[0]}"}


async def test_another_fault_of_the_request_asks_no_other_key(with_keys: Settings, provider: Provider) -> None:
    ring = Keyring(provider)
    ring.refuses = dict.fromkeys(KEYS, (503, "overloaded"))
    async with running(with_keys) as client:
        await client.send(await client.new_session(), "hello")
    assert ring.sent == KEYS[:1]


@pytest.mark.sweep
async def test_a_list_of_keys_in_a_file_is_read_anew_and_those_that_stay_keep_their_health(
    with_keys: Settings, provider: Provider, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segue.watch.LOOK_EVERY_S", 3600)
    file, given = folder / "OPENAI_API_KEY", "\n".join(KEYS[:2])
    file.write_text(given)
    ring = Keyring(provider)
    ring.refuses = {KEYS[0]: (429, "insufficient_quota")}
    of_file = {"secrets_dir": folder, "openai_api_key": SecretStr(given)}
    with capture_logs() as logs:
        async with running(with_keys.model_copy(update=of_file)) as client:
            session = await client.new_session()
            await client.chat(session, "hello")
            ring.refuses[KEYS[1]] = (401, "invalid_api_key")
            file.write_text(f"{KEYS[0]},{KEYS[2]}")
            await client.chat(session, "hello")
    assert ring.sent == [KEYS[0], KEYS[1], KEYS[1], KEYS[2]]
    assert not any(key in str(logs) for key in KEYS)


async def test_a_key_comes_back_when_its_time_is_over_and_until_then_the_one_that_comes_back_first_is_asked() -> None:
    now = 1000.0

    keys = LiveKeys("OPENAI_API_KEY", "a,b", clock=lambda: now)
    await keys.refused("a", "rate_limit", 60)
    assert (keys.value, set(keys.left_out())) == ("b", {1})
    await keys.refused("b", "rate_limit", 30)
    assert (keys.value, set(keys.left_out())) == ("b", {1, 2})
    now += 60
    assert (keys.value, keys.left_out()) == ("a", {})


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
