"""What a caller can have and undo of all that is stored of them; tests/db/test_erasure.py looks at every table."""

import json

from segue.config import Settings
from tests.support.identity import new_key, speaking
from tests.support.logs import until
from tests.support.service import Client, running


async def key_is_refused(client: Client) -> bool:
    return (await client.http.get("/me")).status_code == 401


async def test_a_caller_exports_and_erases_what_is_theirs_once_they_name_themselves(settings: Settings) -> None:
    guarded = settings.model_copy(update={"auth": "api_key", "openai_base_url": None})
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "bob")) as bob,
    ):
        sessions = {each: await each.new_session() for each in (ada, bob)}
        for each, session in sessions.items():
            await each.chat(session, "hello")
        exported = await ada.http.get("/me/export")
        assert exported.headers["content-type"].startswith("text/plain")
        rows = [json.loads(line) for line in exported.text.splitlines()]
        assert [row["row"]["id"] for row in rows if row["table"] == "sessions"] == [sessions[ada]]
        assert {"messages", "turns", "api_keys"} <= {row["table"] for row in rows}
        assert sessions[bob] not in exported.text

        refused = await ada.http.delete("/me", params={"confirm": "bob"})
        assert (refused.status_code, refused.json()["code"]) == (422, "not_confirmed")
        assert len(await ada.messages(sessions[ada])) == 2
        erased = await ada.http.delete("/me", params={"confirm": "ada"})
        assert (erased.status_code, erased.json()["rows"]["messages"]) == (200, 2)
        await until(lambda: key_is_refused(ada))
        assert len(await bob.messages(sessions[bob])) == 2
