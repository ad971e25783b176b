"""What the tools of `segue mcp serve` ask of the service over its HTTP API, as one caller.

Knows the contract of the API and nothing of MCP. An error of the service is a Refused that says what to do.

The question about the step of a plan that waits, as the form that an MCP client shows to the person before it.

MCP calls that elicitation. The model that called the tool neither sees the form nor can fill it in.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2
from mcp_types import ElicitRequestFormParams, ElicitResult

from segue.around.service_client import (
    LAST_EVENTS,
    PAUSES_S,
    Refused,
    StreamEvent,
    not_segue,
    refused,
    unreachable,
    waiting_step,
    waiting_steps,
)
from segue.around.terminal import one_line
from segue.language.shown_call import CallView

ADVICE: Final[Mapping[int, str]] = {
    401: "Make a key with `segue keys create --user YOU` and give it as SEGUE_API_KEY.",
    404: "list_sessions lists the sessions, start_session begins one.",
}


@dataclass(frozen=True, slots=True)
class Service:
    """`http` has the URL of the service, `headers` say who calls."""

    http: httpx2.AsyncClient
    headers: Mapping[str, str]

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    async def get(self, path: str, **params: Any) -> Any:
        """Returns the body. Raises Refused."""
        return await self._request("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Returns the body. Raises Refused."""
        return await self._request("POST", path, json=body)

    async def _request(self, method: str, path: str, **request: Any) -> Any:
        try:
            response = await self.http.request(method, path, headers=self.headers, **request)
            if response.is_error:
                raise refused(response, ADVICE)
            return response.json()
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from error
        except ValueError as error:
            raise not_segue(self.url) from error


@dataclass(slots=True)
class CalledTurn:
    """A turn that a request to `path` with `body` begins. Sent again with its `key`, it is the same turn."""

    service: Service
    session_id: str
    path: str
    body: Mapping[str, Any]
    key: str
    id: str | None = None
    _asked: anyio.Event = field(default_factory=anyio.Event)

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Ends with the terminal event. A stream that is cut is asked for again, and goes on after the last event.

        Raises Refused, also if the service cannot be reached for half a minute.
        """
        last, failures = 0, 0
        while True:
            try:
                async with AsyncExitStack() as stack:
                    async for each in await self._open(stack):
                        if (position := int(each.id or 0)) <= last:
                            continue
                        last, failures = position, 0
                        event: StreamEvent = json.loads(each.data)
                        yield event
                        if event["type"] in LAST_EVENTS:
                            return
                error = Refused("The stream ended before the turn did.", status=503)
            except (httpx2.TransportError, Refused) as cut:
                error = cut if isinstance(cut, Refused) else unreachable(self.service.url, cut)
            if failures == len(PAUSES_S) or not error.is_temporary:
                raise error
            await anyio.sleep(PAUSES_S[failures])
            failures += 1

    async def cancel(self) -> None:
        """Cancels it, if the service has accepted it. Raises Refused."""
        await self._asked.wait()
        if self.id is not None:
            await self.service.post(f"/sessions/{self.session_id}/turns/{self.id}/cancel")

    async def _open(self, stack: AsyncExitStack) -> httpx2.EventSource:
        """A caller that is cancelled meanwhile still learns which turn it is, to cancel it."""
        headers = {**self.service.headers, "Idempotency-Key": self.key}
        with anyio.CancelScope(shield=True):
            try:
                stream = self.service.http.sse(
                    self.path, method="POST", json=self.body, headers=headers, max_event_size=None
                )
                source = await stack.enter_async_context(stream)
                if source.response.is_error:
                    await source.response.aread()
                    raise refused(source.response, ADVICE)
                self.id = source.response.headers.get("X-Turn-Id", self.id)
            finally:
                self._asked.set()
        return source


_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Run this step?",
            "description": "confirm runs exactly what is shown, reject ends the plan, amend takes what you say below.",
            "enum": ["confirm", "reject", "amend"],
        },
        "change": {"type": "string", "title": "What should be different", "description": "Only with amend."},
    },
    "required": ["decision"],
}


def question(plan: Mapping[str, Any], whole: str) -> str:
    """Returns the steps that wait as they would run. `whole` is where all of a long call can be read."""
    lines = [f"Plan: {one_line(plan['goal'])}"]
    for step in waiting_steps(plan):
        lines.append(f"Step {step.get('id')}: {one_line(step.get('description') or '')}")
        if step.get("tool"):
            lines.append(f"Tool: {one_line(step['tool'])}")
            lines += [f"  {line}" for line in CallView("en", whole).lines(step.get("args") or {})]
    if asks := (waiting_step(plan) or {}).get("asks"):
        shown = {"the_tool_says": asks["message"]} | ({"follow_this_link_first": asks["url"]} if asks["url"] else {})
        lines += CallView("en", whole).lines(shown)
    return "\n".join(lines)


def fills_in(plan: Mapping[str, Any]) -> bool:
    """Whether the step waits for values that its tool asks for, instead of a decision."""
    asks = (waiting_step(plan) or {}).get("asks")
    return asks is not None and asks["mode"] == "form"


def form(plan: Mapping[str, Any], whole: str) -> ElicitRequestFormParams:
    """Of values that a tool asks for, those that were given in words stand in the form for the person to see."""
    step, schema = waiting_step(plan), _FORM
    if step is not None and fills_in(plan):
        given, asked = step["asks"]["given"] or {}, step["asks"]["schema"]
        fields = {
            name: {**of, "default": given[name]} if name in given else of for name, of in asked["properties"].items()
        }
        schema = {**asked, "properties": fields}
    return ElicitRequestFormParams(message=question(plan, whole), requested_schema=schema)


def decision(answer: ElicitResult, version: int, *, filled_in: bool) -> dict[str, Any] | None:
    """Returns the body of a decision; None if the person left it open. A yes with a change in it is a change."""
    if filled_in and answer.action == "accept":
        return {"decision": "confirm", "version": version, "answer": answer.content or {}}
    given = answer.content or {} if answer.action == "accept" else {}
    decided = "reject" if answer.action == "decline" else given.get("decision")
    change = str(given.get("change") or "").strip()
    if decided != "reject" and change:
        return {"decision": "amend", "version": version, "message": change}
    return {"decision": decided, "version": version} if decided in ("confirm", "reject") else None
