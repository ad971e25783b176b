"""Whatever a model writes as a plan neither fails the turn nor stops the process."""

import json

from segue.plans.plan_parser import parse_plan
from tests.support.plans import ASK, deletion
from tests.support.provider import Provider, says
from tests.support.service import Client


async def test_a_nul_written_as_an_escape_is_cleaned(client: Client, provider: Provider) -> None:
    first = {**deletion(1), "description": "De\0lete", "args": {"item_id": "itm\0-1"}}
    provider.will(says(json.dumps({"steps": [first, deletion(2)]})))
    answer = await client.chat(await client.new_session(), ASK)
    assert answer["plan"]["steps"][0]["args"] == {"item_id": "itm-1"}


async def test_endless_arguments_are_no_plan(client: Client, provider: Provider) -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    step = f'{{"description": "d", "tool": "mcp_delete_item", "args": {deep}}}'
    provider.will(says(f'{{"steps": [{step}, {step}]}}'), says("Without a plan."))
    answer = await client.chat(await client.new_session(), ASK)
    assert answer["message"]["content"] == "Without a plan."


def test_a_text_of_escaped_quotes_is_read_in_no_time() -> None:
    for end in ("", "\\"):
        assert parse_plan('{"steps": ["' + '\\"' * 45_000 + end, tools=["x"]) == ()


def test_a_quotation_mark_in_the_prose_before_a_plan_does_not_hide_it() -> None:
    assert parse_plan('For the 6" pipe: {"steps": [{"description": "d", "tool": "x"}]}', tools=["x"])
