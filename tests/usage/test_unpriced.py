"""A cap of dollars and a model without a price."""

from pathlib import Path

from segue.config import Settings
from tests.support.provider import Provider
from tests.support.service import running


async def test_no_user_gets_a_limit_of_cost_while_a_fallback_has_no_price(settings: Settings) -> None:
    given = {"llm_fallback_model": "spare", "llm_max_retries": 0}
    async with running(settings.model_copy(update=given)) as client:
        put = await client.http.put("/ops/users/local/limits", json={"cost_per_day": 0.05})
        assert (put.status_code, put.json().get("code")) == (422, "price_missing")


async def test_a_limit_of_cost_that_stands_holds_for_an_agent_whose_model_has_no_price(
    settings: Settings, provider: Provider, tmp_path: Path
) -> None:
    async with running(settings) as client:
        put = await client.http.put("/ops/users/local/limits", json={"cost_per_day": 0.05})
        assert put.status_code == 200, put.text
    settings = settings.model_copy(update={"agents_config": tmp_path / "own.toml"})
    settings.agents_config.write_text('[agents.free]\nmodel = "unpriced-1"\n')
    async with running(settings) as client:
        session = await client.new_session(agent="free")
        said = await client.send(session, "unpriced")
        assert said.json()["code"] == "price_missing"
    assert provider.requests == []
