"""Traces a plain message, a tool call and a spoken yes through a service of its own: what each passes is counted."""

from pathlib import Path

from pydantic import SecretStr

from segue.config import Settings
from tests.support.branches import burn
from tests.support.message_way import TIMES, Way, way_of
from tests.support.provider import calls, says, scripted_provider
from tests.support.service import running


async def ways_of_messages(database_url: str, redis_url: str, folder: Path) -> dict[str, Way]:
    """What a plain message, a tool call and a spoken yes pass. `folder` gets a file of the MCP servers, with none."""
    (folder / "mcp.json").write_text('{"mcpServers": {}}')
    async with scripted_provider() as provider:
        settings = Settings(
            _env_file=None,
            database_url=SecretStr(database_url),
            redis_url=SecretStr(redis_url),
            openai_base_url=provider.base_url,
            llm_model="scripted",
            web_search_provider="none",
            mcp_config=folder / "mcp.json",
        )
        async with running(settings, tools=[burn]) as client:
            session, *waiting = [await client.new_session() for _ in range(TIMES + 2)]
            for each in waiting:
                provider.will(calls(("burn", {"item": "desk"})))
                await client.chat(each, "burn the desk")

            async def says_hello() -> None:
                provider.will(says("Hello."))
                await client.chat(session, "hello")

            async def has_the_time_told() -> None:
                provider.will(calls(("current_time", {})), says("Noon."))
                await client.chat(session, "what time is it?")

            async def says_yes() -> None:
                provider.will(says("It burns."))
                answer = await client.chat(waiting.pop(), "yes")
                assert answer["plan"]["status"] == "completed", answer["plan"]

            sent = {"a plain message": says_hello, "a tool call": has_the_time_told, "a spoken yes": says_yes}
            return {name: await way_of(send) for name, send in sent.items()}
