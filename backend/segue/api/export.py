"""The route that exports a session without secrets: as a recording for `segue replay`, or as Markdown for people."""

import asyncio
from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from segue.api.deps import Caller, ServicesDep, SessionId, router_of
from segue.api.problem_codes import problems
from segue.domain.recording import RecordedSettings, Recording, recording_text
from segue.turns.export import load_conversation, make_recording
from segue.turns.transcript import as_markdown

router = router_of("sessions", "/sessions")


Format = Annotated[Literal["json", "markdown"], Query(description="A recording for `segue replay`, or to be read.")]
MaxResultBytes = Annotated[int, Query(ge=0, le=1_000_000, description="Of a result that is to be in the recording.")]


@router.get(
    "/{session_id}/export",
    response_model=Recording,
    responses={
        200: {"content": {"text/markdown": {"schema": {"type": "string"}}}},
        **problems("nothing_to_export", "conversation_too_long"),
    },
)
async def export_session(
    session_id: SessionId,
    services: ServicesDep,
    caller: Caller,
    format: Format = "json",  # noqa: A002 (the name of the parameter)
    max_result_bytes: MaxResultBytes = 100_000,
) -> Response:
    """Exports the turns that have ended, without secrets. A larger result is represented by its reference; Markdown has
    references only.
    """
    async with services.database.read_only() as connection:
        conversation = await load_conversation(
            connection, caller, session_id, max_result_bytes=max_result_bytes, now=services.clock()
        )
    if format == "markdown":
        return Response(await asyncio.to_thread(as_markdown, conversation), media_type="text/markdown")
    settings = RecordedSettings(
        planning=services.planning, confirm=services.confirm, confirm_words=services.confirm_words
    )
    tools = services.tools.tools()
    text = await asyncio.to_thread(lambda: recording_text(make_recording(conversation, tools, settings)))
    return Response(text, media_type="application/json")
