"""What users think of answers: said, changed, taken back, and read by operators."""

from typing import Any

import pytest

from segue.config import Settings
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, says
from tests.support.service import Client, running


async def rate(client: Client, session: str, message: str, **body: Any) -> dict[str, Any]:
    response = await client.http.put(f"/sessions/{session}/messages/{message}/feedback", json=body)
    assert response.status_code == 200, response.text
    rated: dict[str, Any] = response.json()["metadata"]
    return rated


async def test_an_answer_is_rated_rated_anew_and_no_longer_rated(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    answer = (await client.chat(session, "hi"))["message"]["id"]
    assert (await rate(client, session, answer, rating="up"))["feedback"] == {"rating": "up", "comment": None}
    rated = await rate(client, session, answer, rating="down", comment="Too short")
    assert rated == {"model": "scripted", "feedback": {"rating": "down", "comment": "Too short"}}
    assert (await client.messages(session))[1]["metadata"] == rated
    assert "feedback" not in await rate(client, session, answer, rating=None)
    assert (await client.get("/feedback"))["items"] == []


async def test_only_what_the_assistant_said_is_rated(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    session = await client.new_session()
    await client.chat(session, "hi")
    [question, answer] = [message["id"] for message in await client.messages(session)]
    path = f"/sessions/{session}/messages/{{}}/feedback"
    refused = await client.http.put(path.format(question), json={"rating": "up"})
    assert (refused.status_code, refused.json()["code"]) == (422, "not_an_answer")
    elsewhere = f"/sessions/{await client.new_session()}/messages/{answer}/feedback"
    assert (await client.http.put(elsewhere, json={"rating": "up"})).json()["code"] == "message_not_found"
    assert (await client.http.put(path.format(answer), json={"rating": "meh"})).status_code == 422


@pytest.mark.sweep
async def test_operators_read_what_all_users_said_newest_first_page_by_page(
    settings: Settings, provider: Provider
) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    provider.will(says("one"), says("two"), says("three"))
    async with (
        running(guarded) as service,
        speaking(service, await new_key(guarded, "ada")) as ada,
        speaking(service, await new_key(guarded, "root", ["ops"])) as ops,
    ):
        session = await ada.new_session()
        for message, rating in (("a", "up"), ("b", "down"), ("c", "up")):
            answer = await ada.chat(session, message)
            await rate(ada, session, answer["message"]["id"], rating=rating, comment=message)
        first = await ops.get("/feedback", limit=2)
        second = await ops.get("/feedback", limit=2, cursor=first["next_cursor"])
        assert [said["comment"] for said in first["items"] + second["items"]] == ["c", "b", "a"]
        [down] = (await ops.get("/feedback", rating="down"))["items"]
        assert (down["user"], down["session_id"], down["rating"]) == ("ada", session, "down")
        assert (await ada.http.get("/feedback")).json()["code"] == "forbidden"
        assert await ops.get("/me") == {"user": "root", "scopes": ["ops"], "groups": [], "roles": []}
        assert await ada.get("/me") == {"user": "ada", "scopes": [], "groups": [], "roles": []}
