"""Sends what happens in all of the caller's sessions as Server-Sent Events, so that lists need not be read again."""

from typing import Any

from fastapi import Response

from segue.api.deps import Caller, ServicesDep, router_of
from segue.api.events import MEDIA_TYPE, EventStream, LastEventId, LastPosition, framed

EVENTS: dict[str, Any] = {
    MEDIA_TYPE: {
        "schema": {
            "type": "string",
            "description": "One JSON object in each `data:`; `id:` is its position. By `type`: `session_created` and "
            "`session_titled` (session_id, title), `turn_started` (session_id, turn_id, title), `turn_ended` "
            "(session_id, turn_id, status, of a problem its code), `approval_asked` (session_id, "
            "turn_id, plan_id, version), `fact_noted` (memory_id, session_id), `replay_gap` (read the lists anew).",
        },
        "example": 'id: 1795355000000000\ndata: {"type":"turn_started","session_id":"ses_…","turn_id":"turn_…"}\n\n',
    }
}

router = router_of("events")


@router.get(
    "/events", response_class=Response, responses={200: {"description": "The events, as they come", "content": EVENTS}}
)
async def follow_events(
    services: ServicesDep, caller: Caller, after: LastPosition = 0, last_event_id: LastEventId = None
) -> Response:
    """Follows what happens in all of the caller's sessions. A stream begins with `replay_gap`, unless it goes on
    after a position that is still known: read the lists then. It ends after a quarter of an
    hour; ask again with the last id.
    """
    position = after if last_event_id is None else last_event_id
    return EventStream(framed(services.feeds.follow(caller, after=position)))
