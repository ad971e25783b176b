"""The answer of a turn is written once: what its terminal event holds is what FastAPI would write as the response."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from segue.domain.errors import AppError, app_error
from segue.domain.plan import Step
from segue.domain.session import (
    AcknowledgementReport,
    ChatAnswer,
    MemoryReport,
    Message,
    RequestedCall,
    TurnKey,
    Usage,
    WebSearchReport,
)
from segue.domain.tool import ResultRef, ToolCall, ToolCallMetadata
from segue.events.agui_encoding import answer_json, run_ended
from tests.support.plans import new_plan

TURN = TurnKey("ses_1", "turn_1", 1)
AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
TIMES = (AT, AT.replace(microsecond=1), AT.replace(microsecond=120_000), AT.replace(year=1))
HARD: dict[str, Any] = {
    "text": 'a "quote", a \\, a /, \b\f\n\r\t\x01\x1f\x7f, è, 日本, \u2028, 👍🏽, </script>, ,"result":',
    "numbers": [0, -0.0, 1.0, 0.1, 1e16, 1e-7, 1.5e300, 5e-324, 123456789.123, 2**63 - 1, -(2**63), 2**64 - 1],
    "nested": {"": None, "è": [True, False, [], {}]},
}


def chat_answer(args: dict[str, Any], at: datetime, text: str) -> ChatAnswer:
    step = Step(1, text, "look", args, "waiting", requires_confirmation=True)
    call = ToolCall(
        tool_call_id="call_1",
        tool_name="look",
        args=args,
        status="succeeded",
        turn_id=TURN.turn_id,
        started_at=at,
        duration_ms=12,
        error=None,
        metadata=ToolCallMetadata(10, text, text),
        result_ref=ResultRef(TURN.session_id, "call_1"),
        expires_at=at,
    )
    return ChatAnswer(
        session_id=TURN.session_id,
        turn_id=TURN.turn_id,
        status="completed",
        message=Message(
            "msg_1", 2, TURN.turn_id, "assistant", text, at, (RequestedCall("call_1", "look", args),), metadata=args
        ),
        acknowledgement=AcknowledgementReport(verdict="confirm", language="it", plan_version=3),
        plan=new_plan("plan_1", goal=text, origin="msg_0", steps=[step], at=at),
        tool_calls=(call, call),
        web_search=WebSearchReport(),
        memory_used=MemoryReport(short_term=True),
        usage=Usage(1, 2, 3, 4, 5, True, 0.5, 6),
        model="scripted",
    )


@pytest.mark.parametrize("at", TIMES, ids=str)
async def test_the_answer_is_byte_for_byte_what_fastapi_writes(at: datetime) -> None:
    answer = chat_answer(HARD, at, HARD["text"])
    app = FastAPI()

    @app.get("/")
    async def get_answer() -> ChatAnswer:
        return answer

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
        written = (await client.get("/")).content
    assert answer_json(run_ended(TURN, answer)) == written


def test_an_error_comes_out_of_its_terminal_event_as_it_went_in() -> None:
    error = app_error("turn_interrupted").with_extra(turn_id="turn_1")
    with pytest.raises(AppError) as raised:
        answer_json(run_ended(TURN, error))
    assert vars(raised.value) == vars(error)
