"""A process that only calls `ChatOpenAI`, to compare a turn with.

`python -m bench.bare BASE_URL` reads one order as JSON from each line of stdin: either the messages to call with, or
how many calls to make and whether to stream; then it answers with the milliseconds of each call.
"""

import sys
import time

import orjson
import uvloop
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


async def whole_answer(model: ChatOpenAI, window: list[BaseMessage]) -> float:
    started = time.perf_counter()
    await model.ainvoke(window)
    return (time.perf_counter() - started) * 1000


async def first_token(model: ChatOpenAI, window: list[BaseMessage]) -> float:
    """Returns the milliseconds until the first word; the stream is read to its end."""
    started = time.perf_counter()
    came = [time.perf_counter() async for chunk in model.astream(window) if chunk.content]
    return (came[0] - started) * 1000


async def main(base_url: str) -> None:
    model = ChatOpenAI(model="bare", api_key=SecretStr("none"), base_url=base_url, max_retries=0)
    window: list[BaseMessage] = []
    for line in sys.stdin:
        order = orjson.loads(line)
        if "messages" in order:
            window = convert_to_messages(order["messages"])
            continue
        call = first_token if order["stream"] else whole_answer
        times = [await call(model, window) for _ in range(order["calls"])]
        sys.stdout.write(f"{orjson.dumps(times).decode()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
