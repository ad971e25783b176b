"""How the service is put together from its settings."""

from segue.config import Settings
from tests.support.service import running


async def test_a_built_in_tool_that_is_switched_off_is_not_offered(settings: Settings) -> None:
    async with running(settings.model_copy(update={"disabled_tools": ("web_fetch",)})) as client:
        names = {tool["name"] for tool in (await client.get("/tools"))["items"]}
    assert names == {"current_time", "get_tool_result", "remember", "search_memory"}
