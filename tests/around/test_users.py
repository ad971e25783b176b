"""What is done to users at the command line: asked about first, and in the audit like what operators do over HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from tempfile import TemporaryFile

import pytest

from segue.config import Settings
from tests.support.commands import ROOT, TIMEOUT_S, forked, segue, surroundings
from tests.support.identity import new_key, speaking
from tests.support.service import Client, running
from tests.support.stores import Stores, looking_into
from tests.support.terminal import on_a_terminal


@pytest.fixture
async def service(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings.model_copy(update={"auth": "api_key"})) as served:
        yield served


@pytest.mark.sweep
async def test_a_user_is_erased_once_it_was_said_on_a_terminal_or_with_yes_and_nobody_else_by_mistake(
    service: Client, settings: Settings, stores: Stores, urls: dict[str, str]
) -> None:
    async with speaking(service, await new_key(settings, "ada")) as ada:
        await ada.new_session()

    async def there() -> list[int]:
        counts = "SELECT count(*) FROM sessions", "SELECT count(*) FROM api_keys", "SELECT count(*) FROM audit"
        return [await stores.database.fetchval(count) for count in counts]

    refused = {
        ("--user", "ada"): (2, "Nothing was removed. Look with --dry-run what ada has, and remove it with --yes."),
        ("--user", "adda", "--yes"): (1, "There is no user adda: no row is theirs."),
        ("--user", "adda", "--dry-run"): (1, "There is no user adda: no row is theirs."),
    }
    code, said = await asyncio.to_thread(segue, "erase", "--user", "ada", "--dry-run", "--yes", **urls)
    assert (code, "sessions  1\n" in said, await there()) == (0, True, [1, 1, 0])
    for arguments, (code, why) in refused.items():
        assert await asyncio.to_thread(segue, "erase", *arguments, **urls) == (code, f"{why}\n"), arguments
    for answer, code, left in (("n\n", 1, [1, 1, 0]), ("y\n", 0, [0, 0, 1])):
        async with on_a_terminal("--user", "ada", command="erase", **urls) as seat:
            assert "sessions  1\r\n" in await seat.until("Remove all of this of ada, for good? [y/N]: ")
            seat.types(answer)
            assert await seat.left() == code
        assert await there() == left, answer


@pytest.mark.sweep
async def test_two_operators_who_set_limits_of_a_user_at_once_lose_nothing(
    settings: Settings, stores: Stores, urls: dict[str, str]
) -> None:
    limit = partial(asyncio.to_thread, segue, "users", "limits", "--user", "ada", **urls)
    assert (await limit("--turns-per-minute", "7"))[0] == 0
    async with looking_into(settings) as first:
        async with first.database.transaction():
            await first.database.execute("UPDATE user_limits SET concurrent_turns = 2")
            second = asyncio.create_task(limit("--turns-per-minute", "9"))
            await stores.until_locked()
        assert (await second)[0] == 0
    row = await stores.database.fetchrow("SELECT turns_per_minute, concurrent_turns FROM user_limits")
    assert tuple(row) == (9, 2)
    assert (await limit("--clear", "--tokens-per-day", "5"))[0] == 0
    row = await stores.database.fetchrow("SELECT turns_per_minute, concurrent_turns, tokens_per_day FROM user_limits")
    assert tuple(row) == (None, None, 5)


@pytest.mark.sweep
async def test_what_is_done_at_the_command_line_is_in_the_audit_of_operators(
    service: Client, settings: Settings, urls: dict[str, str]
) -> None:
    commands = (
        ("keys", "create", "--user", "ada", "--scope", "ops"),
        ("users", "limits", "--user", "ada", "--turns-per-minute", "7"),
        ("users", "limits", "--user", "ada"),
        ("export", "--user", "ada"),
        ("users", "adopt", "--user", "ada", "--from", "eve"),
    )
    for command in commands:
        code, said = await asyncio.to_thread(segue, *command, **urls)
        assert code == 0, said
    code, said = await asyncio.to_thread(segue, *commands[2], "--cost-per-day", "nan", **urls)
    assert (code, "--cost-per-day" in said) == (2, True)
    async with speaking(service, await new_key(settings, "root", ["ops"])) as root:
        [key] = (await root.get("/ops/keys", user="ada"))["items"]
        made = await asyncio.to_thread(segue, "keys", "rotate", key["id"], **urls)
        for command in (("keys", "revoke", key["id"]), ("erase", "--user", "ada", "--yes")):
            assert (await asyncio.to_thread(segue, *command, **urls))[0] == 0
        acts = (await root.get("/ops/audit", actor="cli"))["items"]
    user, of_key = {"user": "ada"}, {"user": "ada", "key_id": key["id"]}
    assert [(act["action"], act["details"]) for act in reversed(acts)] == [
        ("create_key", {**of_key, "scopes": ["ops"]}),
        ("set_user_limits", {**user, "turns_per_minute": 7}),
        ("export_user", user),
        ("adopt_user", {"from": "eve", "to": "ada"}),
        ("rotate_key", {**of_key, "by": acts[2]["details"]["by"]}),
        ("revoke_key", of_key),
        ("erase_user", user),
    ]
    assert {act["request_id"] for act in acts} == {None}
    assert made[1].split()[-1] not in str(acts)


def unwritten(stdout: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    with TemporaryFile("w+") as stderr:
        process = forked(arguments, ROOT, surroundings(environment), (0, stdout, stderr.fileno()))
        code = process.wait(TIMEOUT_S)
        stderr.seek(0)
        return code, stderr.read()


async def test_a_key_that_cannot_be_shown_is_not_made_and_ends_none(stores: Stores, urls: dict[str, str]) -> None:
    assert (await asyncio.to_thread(segue, "keys", "create", "--user", "ada", **urls))[0] == 0
    [key] = await stores.database.fetch("SELECT id, expires_at FROM api_keys")
    reader, broken = os.pipe()
    os.close(reader)
    for stdout, why in ((os.open("/dev/full", os.O_WRONLY), "No space left on device"), (broken, "Broken pipe")):
        for command in (("create", "--user", "ada"), ("rotate", key["id"])):
            told = await asyncio.to_thread(unwritten, stdout, "keys", *command, **urls)
            assert told == (1, f"No key was made: it cannot be written, {why}.\n")
        os.close(stdout)
    assert await stores.database.fetch("SELECT id, expires_at FROM api_keys") == [key]
    assert await stores.database.fetchval("SELECT count(*) FROM audit") == 1
