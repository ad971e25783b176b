"""The operator's own rule over each call of a tool: BEFORE_CALL, or `create_app(before_call=…)`.

It can only tighten: what waits for a yes anyway still does. A rule that fails, or takes too long, denies.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Literal

import structlog
from anyio import to_thread

from segue.domain.session import RequestedCall
from segue.domain.tool import Effect, ToolContext, ToolSpec

MAX_REASON_CHARS: Final = 500

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call as it would run: its arguments fit the tool's schema."""

    name: str
    args: Mapping[str, Any]
    effect: Effect
    source: str


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run. The model and the user are told why."""

    reason: str


Ruling = Literal["allow", "ask"] | Deny
BeforeCall = Callable[[ProposedCall, ToolContext], object | Awaitable[object]]


async def rule(
    policy: BeforeCall, call: RequestedCall, tool: ToolSpec, who: ToolContext, *, timeout_s: float
) -> Ruling:
    """Returns what the policy says of a call. It is `allow`, `ask`, `deny` or a Deny; everything else denies."""
    proposed = ProposedCall(tool.name, copy.deepcopy(call.args), tool.effect, tool.source)
    try:
        async with asyncio.timeout(timeout_s):
            # In a thread, for a function that blocks; what an `async def` returns there is awaited here.
            said = await to_thread.run_sync(policy, proposed, who, abandon_on_cancel=True)
            said = await said if isawaitable(said) else said
    except (Exception, SystemExit) as fault:
        log.warning("policy_failed", tool=tool.name, error=type(fault).__name__, exc_info=fault)
        return Deny("the rule that decides failed, or took too long")
    match said:
        case "allow" | "ask":
            return said
        case "deny":
            return Deny("no reason is given")
        case Deny():
            return Deny(" ".join(said.reason.split())[:MAX_REASON_CHARS] or "no reason is given")
        case _:
            log.warning("policy_failed", tool=tool.name, error="NoRuling", said=type(said).__name__)
            return Deny("the rule that decides gave no answer that is known")
