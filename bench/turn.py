"""What a plain turn costs beside the bare model call inside it, and whether it costs more as the session grows.

`python bench/turn.py [TURNS]` starts Segue on embedded servers and a model that answers at once, and prints a table.
Both sides are measured in turn in the same run, over the same window of messages.
"""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from backend.agent import prompts
from backend.config import Settings
from backend.log import configure_logging
from backend.main import create_app

BATCH = 20
MESSAGE = "Hello there, what do you make of this?"
ANSWER = "A short answer."
COMPLETION = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
)


async def model(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(COMPLETION)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": COMPLETION})


def serve(app: Any, port: int) -> None:
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_config=None, access_log=False)


def serve_model(port: int) -> None:
    uvicorn.run(model, port=port, loop="uvloop", http="httptools", lifespan="off", log_config=None, access_log=False)


def serve_segue(port: int, model_port: int, folder: str) -> None:
    configure_logging(level="warning", log_format="json")
    settings = Settings(
        _env_file=None,
        data_dir=Path(folder),
        openai_base_url=f"http://127.0.0.1:{model_port}/v1",
        llm_model="scripted",
        mcp_config=Path(folder) / "mcp.json",
    )
    serve(create_app(settings), port)


async def timed(batch: int, call: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds a call."""
    started = time.perf_counter()
    for _ in range(batch):
        await call()
    return (time.perf_counter() - started) * 1000 / batch


async def measure(segue: str, model_url: str, turns: int) -> tuple[list[float], list[float]]:
    """Milliseconds of bare calls and of turns, a number a batch."""
    bare_model = ChatOpenAI(model="scripted", api_key=SecretStr("none"), base_url=model_url, max_retries=0)
    pairs = [message for _ in range(10) for message in (HumanMessage(MESSAGE), AIMessage(ANSWER))]
    window = [SystemMessage(prompts.SYSTEM), *pairs[1:], HumanMessage(MESSAGE)]
    async with httpx.AsyncClient(base_url=segue, timeout=30) as client:
        await answers(client)
        session = (await client.post("/sessions", json={})).json()["id"]

        async def turn() -> None:
            (await client.post(f"/sessions/{session}/chat", json={"message": MESSAGE})).raise_for_status()

        async def bare() -> None:
            await bare_model.ainvoke(window)

        await timed(BATCH, turn)
        await timed(BATCH, bare)
        measured = [(await timed(BATCH, bare), await timed(BATCH, turn)) for _ in range(turns // BATCH)]
    return [bare for bare, _ in measured], [turn for _, turn in measured]


async def answers(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.get("/health/live")
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with tempfile.TemporaryDirectory() as folder:
        segue_port, model_port = 18_801, 18_802
        servers = [
            multiprocessing.Process(target=serve_model, args=(model_port,)),
            multiprocessing.Process(target=serve_segue, args=(segue_port, model_port, folder)),
        ]
        for server in servers:
            server.start()
        try:
            urls = f"http://127.0.0.1:{segue_port}", f"http://127.0.0.1:{model_port}/v1"
            bare, turn = asyncio.run(measure(*urls, turns))
        finally:
            for server in reversed(servers):
                server.terminate()
                server.join()
    quarter = max(len(turn) // 4, 1)
    print("| what | median |\n|---|---:|")
    print(f"| bare ChatOpenAI call, 21 messages | {statistics.median(bare):.1f} ms |")
    print(f"| plain turn, same window | {statistics.median(turn):.1f} ms |")
    print(f"| turn ÷ bare call | {statistics.median(turn) / statistics.median(bare):.2f} |")
    grown = statistics.median(turn[-quarter:]) / statistics.median(turn[:quarter])
    print(f"| last quarter of {turns} turns ÷ first | {grown:.2f} |")


if __name__ == "__main__":
    main()
