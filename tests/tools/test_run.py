import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from segue.domain.tool import Tool, ToolContext, ToolFailed, ToolLost, ToolRetry, ToolSpec, ToolUnauthorized
from segue.domain.user_request import MAX_QUESTIONS, ToolAsks, UserAnswer, UserRequest
from segue.tools.run import CallOutcome, Fault, failed, run_tool
from segue.tools.tool_settings import ToolSettings

WHO = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=datetime(2026, 1, 1, tzinfo=UTC))
ANYTHING = {"type": "object"}
QUERY = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 1}, "limit": {"type": "integer"}},
    "required": ["query"],
    "additionalProperties": False,
}

Function = Callable[[dict[str, Any], ToolContext], Awaitable[object]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


def run(
    function: Function,
    args: dict[str, Any] | None = None,
    *,
    schema: Any = ANYTHING,
    timeout_s: float = 5,
    own_timeout_s: float | None = None,
) -> Awaitable[CallOutcome]:
    tool = Tool(ToolSpec("find", "Finds.", schema, timeout_s=own_timeout_s), function)
    return run_tool(tool, args or {}, WHO, settings=ToolSettings(tool_timeout_s=timeout_s, tool_result_max_bytes=1000))


def returning(value: object) -> Function:
    async def function(_: dict[str, Any], __: ToolContext) -> object:
        return value

    return function


def raising(error: BaseException) -> Function:
    async def function(_: dict[str, Any], __: ToolContext) -> object:
        raise error

    return function


def raising_at_once(_: dict[str, Any], __: ToolContext) -> Awaitable[object]:
    raise ValueError("before anything was awaited")


async def never(_: dict[str, Any], __: ToolContext) -> object:
    await asyncio.Event().wait()
    raise AssertionError


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Panic(BaseException):
    """What a library in Rust raises."""


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_what_a_tool_returns_is_its_payload() -> None:
    outcome = await run(returning({"emails": [{"id": "eml-1"}]}))
    assert (outcome.status, outcome.error) == ("succeeded", None)
    assert outcome.payload.value == {"emails": [{"id": "eml-1"}]}


async def test_a_tool_gets_its_arguments_and_who_it_runs_for() -> None:
    async def function(args: dict[str, Any], context: ToolContext) -> object:
        return [args, context.owner]

    assert (await run(function, {"query": "x"}, schema=QUERY)).payload.value == [{"query": "x"}, "o"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ToolRetry("Give an id."), "Give an id."),
        (ToolFailed("The mailbox is locked.\x00"), "The mailbox is locked."),
        (ToolFailed(""), "find failed."),
        (ValueError("boom"), "find failed: ValueError: boom"),
        (ValueError("\ud800\x00"), "find failed: ValueError: \ufffd"),
        (ValueError("x" * 5000), "find failed: ValueError: " + "x" * 975),
        (Mute(), "find failed: Mute"),
        (RecursionError("deep"), "find failed: RecursionError: deep"),
        (MemoryError(), "find failed: MemoryError: "),
        (StopAsyncIteration(), "find failed: StopAsyncIteration: "),
        (TimeoutError("its own"), "find failed: TimeoutError: its own"),
        (ExceptionGroup("several", [ValueError("a")]), "find failed: ExceptionGroup: several (1 sub-exception)"),
        (SystemExit(3), "find failed: SystemExit: 3"),
        (KeyboardInterrupt(), "find failed: KeyboardInterrupt: "),
        (Panic("index out of bounds"), "find failed: Panic: index out of bounds"),
        (BaseExceptionGroup("all", [SystemExit(1)]), "find failed: BaseExceptionGroup: all (1 sub-exception)"),
        (asyncio.CancelledError("its own"), "find was cut off."),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_a_tool_raises_is_an_outcome(error: BaseException, said: str) -> None:
    outcome = await run(raising(error))
    assert (outcome.status, outcome.error, outcome.payload.size_bytes) == ("failed", said, 0)


async def test_a_tool_that_raises_before_it_is_awaited_is_an_outcome() -> None:
    outcome = await run(raising_at_once)
    assert outcome.error == "find failed: ValueError: before anything was awaited"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"error": "quota exceeded", "emails": []}, "quota exceeded"),
        ({"error": {"code": 7, "message": "no"}}, '{"code":7,"message":"no"}'),
        ({"error": True}, "true"),
        ({"success": False}, "The tool answered success: false."),
        ({"success": False, "message": "no such mail"}, "no such mail"),
        ({"error": None, "emails": []}, None),
        ({"error": "", "success": True}, None),
        ({"errors": ["one"]}, None),
        ({"mail": {"error": "inside"}}, None),
        ([{"error": "in a list"}], None),
        ("error: only a text", None),
        ('{"error": "a text that looks like one"}', None),
        ({"success": 0}, None),
        (None, None),
    ],
)
async def test_an_answer_that_says_it_failed_did_fail_and_is_kept(answer: object, error: str | None) -> None:
    outcome = await run(returning(answer))
    assert (outcome.status, outcome.error) == ("failed" if error else "succeeded", error)
    assert outcome.payload.value == answer


async def test_a_value_that_cannot_be_read_does_not_make_the_effect_a_failure() -> None:
    outcome = await run(returning({"sent": Unreadable()}))
    assert (outcome.status, outcome.error) == ("succeeded", None)
    said = "[the tool answered with a value that cannot be kept: RuntimeError: no words]"
    assert outcome.payload.value == said


PROGRAM = """
import asyncio, resource, sys
from segue.domain.ids import utc_now
from segue.domain.tool import Tool, ToolContext, ToolSpec
from segue.tools.run import run_tool
from segue.tools.tool_settings import ToolSettings

async def pay(args, context):
    print("paid", flush=True)
    return "x" * 300_000

async def main():
    who = ToolContext(owner="o", session_id="s", turn_id="t", tool_call_id="c", now=utc_now())
    settings = ToolSettings(tool_timeout_s=30, tool_result_max_bytes=1_000_000)
    outcome = await run_tool(Tool(ToolSpec("pay", "Pays.", {{"type": "object"}}), pay), {{}}, who, settings=settings)
    print(outcome.status, len(outcome.payload.text))

if __name__ == "__main__":
    {machine}
    asyncio.run(main())
"""


@pytest.mark.in_turns(1)
@pytest.mark.parametrize(
    "machine",
    [
        "resource.setrlimit(resource.RLIMIT_AS, (3 * 2**29, 3 * 2**29))",
        "sys.executable = '/nowhere'",
        "sys.executable = '/bin/false'",
    ],
    ids=["little memory", "no program", "a program that ends"],
)
async def test_a_machine_that_starts_no_process_does_not_make_the_effect_a_failure(
    tmp_path: Path, machine: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(machine=machine))
    ran = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    said, _ = await ran.communicate()
    *told, end = said.decode().splitlines()
    assert ("paid" in told, end) == (True, "succeeded 300000")


async def test_a_summary_that_fails_does_not_make_the_effect_a_failure() -> None:
    def summarise(_: dict[str, Any], __: object) -> str:
        raise KeyError("total")

    tool = Tool(ToolSpec("pay", "Pays.", ANYTHING), returning("paid"), summarise=summarise)
    outcome = await run_tool(tool, {}, WHO, settings=ToolSettings())
    assert (outcome.status, outcome.error) == ("succeeded", None)


async def test_a_large_answer_is_cut_and_still_succeeds() -> None:
    outcome = await run(returning("x" * 5000))
    assert (outcome.status, outcome.payload.cut_from) == ("succeeded", 5000)


async def test_wrong_arguments_are_all_named_and_the_tool_does_not_run() -> None:
    outcome = await run(raising(AssertionError()), {"limit": "ten", "to": 1}, schema=QUERY)
    assert outcome.status == "failed"
    assert outcome.error == (
        'Invalid arguments for find: $.limit: "ten" is not of type "integer"; '
        "$: Additional properties are not allowed ('to' was unexpected); "
        '$: "query" is a required property. Correct them and call again.'
    )


async def test_a_huge_wrong_argument_is_not_repeated_in_full() -> None:
    outcome = await run(raising(AssertionError()), {"query": ["x" * 100_000]}, schema=QUERY)
    assert outcome.error is not None
    assert len(outcome.error) < 500


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "$ref": "http://127.0.0.1:9/schema.json"},
        {"properties": {"query": {"$ref": "#/$defs/missing"}}},
        {"properties": {"query": {"$ref": "#not-an-anchor"}}},
        {"type": "no such type"},
        {"properties": ["query"]},
        {"required": 3},
        ["not a schema"],
        {"properties": {"query": {"enum": {1, 2}}}},
    ],
    ids=str,
)
async def test_a_schema_that_cannot_be_used_fails_the_call_and_says_so(schema: object) -> None:
    outcome = await run(raising(AssertionError()), {"query": "x"}, schema=schema)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("The input schema of find cannot be used: ")


async def test_a_tool_that_hangs_is_stopped_at_its_time_limit() -> None:
    stopped = asyncio.Event()

    async def hang(_: dict[str, Any], __: ToolContext) -> object:
        try:
            return await asyncio.Event().wait()
        finally:
            stopped.set()

    outcome = await run(hang, timeout_s=0.01)
    assert (outcome.status, outcome.error) == ("failed", "find did not answer within 0.01 s.")
    assert outcome.duration_ms >= 10
    assert stopped.is_set()


async def test_a_tools_own_time_limit_comes_before_the_general_one() -> None:
    assert (await run(never, timeout_s=60, own_timeout_s=0.01)).error == "find did not answer within 0.01 s."


async def test_a_call_that_reports_progress_has_its_time_again_up_to_a_ceiling() -> None:
    async def reporting(_: dict[str, Any], context: ToolContext) -> str:
        ends_at = asyncio.get_running_loop().time() + 0.6
        while asyncio.get_running_loop().time() < ends_at:
            context.report(1, None, None)
            await asyncio.sleep(0.01)
        return "found"

    assert (await run(reporting, timeout_s=0.5)).status == "succeeded"
    limited = ToolSpec("find", "Finds.", ANYTHING, max_timeout_s=0.55)
    outcome = await run_tool(
        Tool(limited, reporting), {}, WHO, settings=ToolSettings(tool_timeout_s=0.5, tool_result_max_bytes=1000)
    )
    assert outcome.error == "find did not answer within 0.55 s."


async def test_what_is_told_of_progress_is_the_latest_without_secrets_and_seldom() -> None:
    told: list[tuple[float, float | None, str | None]] = []
    everything = asyncio.Event()

    def tell(*report: Any) -> None:
        told.append(report)
        if report[0] == 9_999:
            everything.set()

    async def counting(_: dict[str, Any], context: ToolContext) -> str:
        for number in range(10_000):
            context.report(number, 10_000, f"canary-8f3a91 \x1b[31m {'x' * 500}")
        context.report(float("nan"), None, None)
        await everything.wait()
        return "found"

    tool = Tool(ToolSpec("find", "Finds.", ANYTHING), counting, secrets=frozenset({"canary-8f3a91"}))
    who, settings = replace(WHO, report=tell), ToolSettings(tool_timeout_s=5, tool_result_max_bytes=1000)
    assert (await run_tool(tool, {}, who, settings=settings)).status == "succeeded"
    [(progress, total, message)] = told
    assert (progress, total, len(message or "")) == (9_999, 10_000, 200)
    assert message is not None
    assert message.startswith("[redacted]")
    assert message.isprintable()


@pytest.mark.sweep
async def test_a_tool_that_swallows_its_cancellation_is_left_behind_and_what_it_says_later_is_dropped() -> None:
    release = asyncio.Event()
    left: set[asyncio.Task[Any]] = set()

    async def stubborn(args: dict[str, Any], _: ToolContext) -> object:
        left.add(cast(asyncio.Task[Any], asyncio.current_task()))
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        if args["raises"]:
            raise ValueError("too late")
        return "too late"

    outcomes = await asyncio.gather(*(run(stubborn, {"raises": raises}, timeout_s=0.01) for raises in (True, False)))
    assert [outcome.error for outcome in outcomes] == ["find did not answer within 0.01 s."] * 2
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
    release.set()
    await asyncio.wait(left)
    left.clear()
    gc.collect()
    loop.set_exception_handler(None)
    assert complaints == []


async def test_the_callers_cancellation_stops_the_tool_and_goes_on_up() -> None:
    entered, stopped = asyncio.Event(), asyncio.Event()

    async def hang(_: dict[str, Any], __: ToolContext) -> object:
        entered.set()
        try:
            return await asyncio.Event().wait()
        finally:
            stopped.set()

    calling = asyncio.ensure_future(run(hang))
    await entered.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert stopped.is_set()


async def test_a_timeout_around_the_call_is_the_callers() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run(never)


async def test_a_call_that_was_refused_is_an_outcome_without_a_payload() -> None:
    outcome = failed("There is no tool called 'x\x00'." + "x" * 5000)
    assert (outcome.status, outcome.payload.size_bytes, outcome.duration_ms) == ("failed", 0, 0)
    assert outcome.error is not None
    assert outcome.error.startswith("There is no tool called 'x'.")
    assert len(outcome.error) == 1000


@dataclass
class Lazy:
    """An awaitable that is no coroutine."""

    value: object

    def __await__(self) -> Generator[Any, Any, object]:
        yield from ()
        return self.value


async def test_a_tool_may_return_any_awaitable() -> None:
    assert (await run(lambda _, __: Lazy("later"))).payload.value == "later"
    outcome = await run(lambda _, __: "not awaitable")  # type: ignore[arg-type,return-value]
    assert outcome.status == "failed"


@pytest.mark.parametrize(("effect", "status"), [("write", "unknown"), ("read_only", "failed")])
async def test_a_tool_that_was_lost_while_it_ran_may_have_taken_effect(effect: Any, status: str) -> None:
    tool = Tool(ToolSpec("send", "Sends.", ANYTHING, effect=effect), raising(ToolLost("the connection was lost")))
    outcome = await run_tool(tool, {}, WHO, settings=ToolSettings(tool_timeout_s=5, tool_result_max_bytes=1000))
    assert (outcome.status, outcome.error) == (status, "the connection was lost")


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (returning("fine"), None),
        (returning({"error": "the mailbox is locked"}), "tool"),
        (returning({"error": "401 Unauthorized"}), "unauthorized"),
        (raising(ToolFailed("the mailbox is locked")), "tool"),
        (raising(ToolLost("no answer")), "tool"),
        (raising(ToolUnauthorized("ask for a new key")), "unauthorized"),
        (raising(ToolFailed("HTTP 401")), "unauthorized"),
        (raising(OSError("status code: 401")), "unauthorized"),
        (raising(KeyError("x")), "tool"),
        (raising(asyncio.CancelledError("its own")), "tool"),
        (raising(ToolRetry("HTTP 401 is no page to read; give another address")), "arguments"),
    ],
)
async def test_a_failure_is_the_tools_or_its_credentials_or_the_arguments(
    function: Function, fault: Fault | None
) -> None:
    assert (await run(function)).fault == fault


async def test_a_tool_that_asks_too_often_has_run_and_failed_by_its_own_fault() -> None:
    asks = ToolAsks(UserRequest("form", "Sure?", schema={"type": "object", "properties": {}}))
    often = replace(WHO, answers=(UserAnswer(1, asks.request.key, "accept"),) * MAX_QUESTIONS)
    tool = Tool(ToolSpec("find", "Finds.", ANYTHING), raising(asks))
    outcome = await run_tool(tool, {}, often, settings=ToolSettings())
    assert (outcome.status, outcome.fault, outcome.asks) == ("failed", "tool", None)
    assert "asked the user more than" in str(outcome.error)


async def test_what_never_reached_a_tool_is_not_its_fault() -> None:
    assert (await run(returning("fine"), {"limit": "many"}, schema=QUERY)).fault == "arguments"
    assert (await run(never, timeout_s=0.01)).fault == "tool"
    assert failed("in maintenance").fault == "refused"
