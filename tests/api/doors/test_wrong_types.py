"""Whatever a client of a door sends in the place of what belongs there: a refusal or an answer, and never a 500."""

import asyncio
import os
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from tests.support.provider import Provider, says
from tests.support.service import Client

FILE: Final = "data:text/plain;base64,SGVsbG8="
# The last one cannot be a member of a set or a key: what looks for it in one raises.
WRONG: Final[tuple[Any, ...]] = (None, 7, "Hello", ["Hello"], {"id": []})
TOGETHER: Final = 4  # more only wait for the locks and connections of each other: on a slow machine too long
NOBODY: Final = "nobody"  # an agent that there is not: the whole body is read, and no turn begins
BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (
        "/v1/chat/completions",
        {
            "model": NOBODY,
            "messages": [
                {"role": "assistant", "content": "Welcome.", "tool_calls": []},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hello"},
                        {"type": "file", "file": {"filename": "a.txt", "file_data": FILE}},
                        {"type": "image_url", "image_url": {"url": FILE}},
                    ],
                },
            ],
            "stream": False,
            "stream_options": {"include_usage": True},
            "conversation": {"id": "mine"},
            "metadata": {"session_id": None, "thread_id": None, "conversation_id": "mine"},
        },
    ),
    (
        "/v1/responses",
        {
            "model": NOBODY,
            "input": [
                {"type": "function_call_output", "call_id": "call_1", "output": "nothing"},
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Hello"},
                        {"type": "input_file", "filename": "a.txt", "file_data": FILE},
                        {"type": "input_image", "image_url": FILE},
                    ],
                },
            ],
            "stream": False,
            "conversation": {"id": "mine"},
            "previous_response_id": None,
            "metadata": {"thread_id": "mine"},
        },
    ),
    (
        "/agents/nobody/agui",
        {
            "threadId": "mine",
            "runId": "run",
            "messages": [
                {"id": "0", "role": "assistant", "content": "Welcome."},
                {
                    "id": "1",
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hello"},
                        {"type": "binary", "mimeType": "text/plain", "filename": "a.txt", "data": FILE},
                        {"type": "document", "source": {"type": "data", "value": FILE, "mimeType": "text/plain"}},
                    ],
                },
            ],
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {"onDisconnect": "cancel"},
            "protocolVersion": "1",
            "resume": [
                {
                    "interruptId": "plan_00000000000000000000000000:1",
                    "status": "resolved",
                    "payload": {"approved": True, "args": {}, "message": None, "remember": None, "answer": {}},
                }
            ],
        },
    ),
    (
        "/api/chat",
        {
            "id": "mine",
            "messages": [
                {"id": "0", "role": "assistant", "parts": [{"type": "text", "text": "Welcome."}]},
                {
                    "id": "1",
                    "role": "user",
                    "parts": [
                        {"type": "text", "text": "Hello"},
                        {"type": "file", "mediaType": "text/plain", "filename": "a.txt", "url": FILE},
                        {"type": "data-decision", "data": {"decision": "confirm", "version": 1, "plan_id": None}},
                    ],
                },
            ],
            "trigger": "submit-message",
            "messageId": None,
            "agent": NOBODY,
        },
    ),
    (
        "/runs/wait",
        {
            "assistant_id": NOBODY,
            "input": {"messages": "Hello"},
            "command": {"resume": {"decisions": [{"type": "approve"}]}, "goto": None, "update": None},
            "stream_mode": ["values"],
            "multitask_strategy": "enqueue",
            "if_not_exists": "create",
            "on_disconnect": "cancel",
            "webhook": None,
        },
    ),
]
SHORT: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/chat/completions", {"model": "segue", "messages": [{"role": "user", "content": "Hello"}], "metadata": {}}),
    ("/v1/responses", {"model": "segue", "input": "Hello", "conversation": "mine", "previous_response_id": None}),
    ("/agui", {"threadId": "mine", "runId": "run", "messages": [{"id": "1", "role": "user", "content": "Hello"}]}),
    (
        "/api/chat",
        {
            "id": "mine",
            "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
            "trigger": "submit-message",
            "messageId": None,
        },
    ),
    (
        "/api/chat",
        {
            "id": "mine",
            "messages": [
                {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]},
                {
                    "id": "2",
                    "role": "assistant",
                    "parts": [
                        {
                            "type": "dynamic-tool",
                            "toolName": "send",
                            "toolCallId": "plan_00000000000000000000000000:1:1",
                            "state": "approval-responded",
                            "input": {},
                            "approval": {"id": "plan_00000000000000000000000000:1:1", "approved": True},
                        }
                    ],
                },
            ],
        },
    ),
    (
        "/api/chat",
        {
            "id": "mine",
            "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
            "messageId": "1",
        },
    ),
    (
        "/runs/wait",
        {
            "assistant_id": "segue",
            "input": {
                "messages": [
                    {
                        "id": "1",
                        "type": "human",
                        "content": [
                            {"type": "text", "text": "Hello"},
                            {"type": "file", "data": "SGVsbG8=", "metadata": {"filename": "a.txt"}},
                        ],
                    }
                ]
            },
            "checkpoint": {"checkpoint_id": None},
        },
    ),
    (
        "/runs",
        {"assistant_id": "segue", "command": {"resume": [{"type": "edit", "args": {"action": "x", "args": {}}}]}},
    ),
]


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Where each member of a body is."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*path, name)
        yield from places(member, *path, name)


def wrong_in(place: int) -> tuple[Any, ...]:
    """What a place is given: the last of `WRONG` and one of the others in turn, or all of them with SWEEP=1."""
    return WRONG if "SWEEP" in os.environ else (WRONG[-1], WRONG[place % (len(WRONG) - 1)])


def spoilt(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with each of its members in turn of other types."""
    for place, path in enumerate(places(body)):
        for wrong in wrong_in(place):
            made: Any = deepcopy(body)
            inside = made
            for name in path[:-1]:
                inside = inside[name]
            if type(inside[path[-1]]) is not type(wrong):
                inside[path[-1]] = wrong
                yield made


@pytest.mark.sweep
async def test_a_member_of_the_wrong_type_is_never_an_error_of_the_service(client: Client, provider: Provider) -> None:
    provider.always("", says("Welcome."))
    room = asyncio.Semaphore(TOGETHER)

    async def asked(path: str, body: dict[str, Any]) -> tuple[int, str, dict[str, Any]]:
        async with room:
            return (await client.http.post(path, json=body)).status_code, path, body

    wanted = [(path, body) for path, whole in [*BODIES, *SHORT] for body in spoilt(whole)]
    answers = await asyncio.gather(*(asked(path, body) for path, body in wanted))
    assert [answer for answer in answers if answer[0] not in (200, 404, 409, 422)] == []
    assert {answer[0] for answer in answers} >= {200, 404, 422}
