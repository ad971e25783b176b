"""A gateway that speaks for its users: each has sessions of their own, and none can be a user of ours."""

import time
from typing import Any

import jwt
from pydantic import SecretStr

from segue.config import Settings
from segue.domain.identity import Identity, is_owner, is_user, user_of_gateway
from tests.support.identity import new_key, speaking
from tests.support.provider import Provider, says
from tests.support.service import Client, running

SECRET = "a secret that Open WebUI has as well"  # noqa: S105 (of this test)
SAID = {"model": "segue", "messages": [{"role": "user", "content": "hello"}]}


async def say(client: Client, **headers: str) -> tuple[int, str]:
    """The status, and the session or the code of the error."""
    response = await client.http.post("/v1/chat/completions", json=SAID, headers=headers)
    return response.status_code, response.headers.get("x-session-id") or response.json()["error"]["code"]


async def test_each_user_of_a_gateway_has_sessions_of_their_own(settings: Settings, provider: Provider) -> None:
    guarded = settings.model_copy(update={"auth": "api_key"})
    gateway_key, ada_key = await new_key(guarded, "gateway", ["act_as"]), await new_key(guarded, "ada")
    async with (
        running(guarded) as service,
        speaking(service, gateway_key) as gateway,
        speaking(service, ada_key) as ada,
    ):
        provider.will(*[says("Hello.")] * 4)
        chat = {"X-OpenWebUI-Chat-Id": "c1"}
        found = [
            await say(gateway, **chat, **{"X-OpenWebUI-User-Id": "ada"}),
            await say(gateway, **chat, **{"X-OpenWebUI-User-Id": "bob"}),
            await say(gateway, **chat),
            await say(ada, **chat),
        ]
        assert {status for status, _ in found} == {200}
        assert len({session for _, session in found}) == 4
        for client, (_, own) in ((gateway, found[2]), (ada, found[3])):
            assert [each["id"] for each in (await client.get("/sessions"))["items"]] == [own]
        again = {
            "X-OpenWebUI-User-Id": "ada",
            "X-OpenWebUI-User-Email": "x@example.org",
            "x-stainless-retry-count": "1",
        }
        assert await say(gateway, **chat, **again) == found[0]
        refused = [
            await say(ada, **{"X-OpenWebUI-User-Id": "bob"}),
            await say(gateway, **{"X-OpenWebUI-User-Id": "x" * 201}),
            await say(gateway, **{"X-OpenWebUI-User-Jwt": signed()}),
        ]
        assert refused == [(403, "may_not_speak_for")] * 3


def signed(secret: str = SECRET, **claims: Any) -> str:
    now = int(time.time())
    payload = {"sub": "ada", "email": "a@example.org", "iss": "open-webui", "iat": now, "exp": now + 300}
    return jwt.encode(payload | claims, secret, algorithm="HS256")


async def test_with_a_secret_only_a_signed_user_is_believed(settings: Settings, provider: Provider) -> None:
    given = {"auth": "api_key", "openwebui_jwt_secret": SecretStr(SECRET)}
    guarded = settings.model_copy(update=given)
    key = await new_key(guarded, "gateway", ["act_as"])
    async with running(guarded) as service, speaking(service, key) as gateway:
        provider.will(says("Hello."))
        assert (await say(gateway, **{"X-OpenWebUI-User-Jwt": signed()}))[0] == 200
        assert await say(gateway, **{"X-OpenWebUI-User-Id": "ada"}) == (403, "may_not_speak_for")
        others = {"secret": SECRET + "!"}, {"exp": 1}, {"iss": "else"}, {"sub": "gateway⇢bob"}
        for claims in others:
            assert await say(gateway, **{"X-OpenWebUI-User-Jwt": signed(**claims)}) == (401, "unauthorized"), claims


async def test_without_auth_all_are_the_one_local_user(client: Client, provider: Provider) -> None:
    provider.will(says("Hello."))
    status, session = await say(client, **{"X-OpenWebUI-User-Id": "ada"})
    assert status == 200
    assert [each["id"] for each in (await client.get("/sessions"))["items"]] == [session]


def test_no_user_of_ours_can_have_the_name_of_a_gateways() -> None:
    name = user_of_gateway(Identity("gateway"), "bob").user
    assert (is_user(name), is_owner(name)) == (False, True)
