"""The sessions of `bench.prompts` talked through with agents of others, which keep every message and every result.

The same instructions, tools, messages and model; the agents and what they remember live in a process of the Python that
`PEERS` names and that has the package. What is not installed is left out.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.peers import python_with
from bench.scripted_sessions import TOOLS, Cost, Requests, cost_of, message_of, reply, scripted, tools
from segue.agent.prompts import TEXTS
from segue.memory.history_window import estimate

TALK_TIMEOUT_S: Final = 120
_BEGINNING: Final = """
import json, sys
from urllib.request import Request, urlopen

task = json.load(open(sys.argv[1]))

def called(name, arguments):
    body = json.dumps({"name": name, "arguments": arguments}).encode()
    return urlopen(Request(task["url"] + "/call", body)).read().decode()
"""
# By the name of each: the package that has it, and the program that talks.
PEERS: Final = {
    "LangChain's create_agent": (
        "langchain.agents",
        """
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

def tool(spec):
    def run(**arguments):
        return called(spec["name"], arguments)
    return StructuredTool.from_function(
        run, name=spec["name"], description=spec["description"], args_schema=spec["schema"]
    )

model = ChatOpenAI(model="scripted", base_url=task["url"] + "/v1", api_key="none")
agent = create_agent(
    model, [tool(spec) for spec in task["tools"]], system_prompt=task["system"], checkpointer=InMemorySaver()
)
for message in task["messages"]:
    said = {"messages": [{"role": "user", "content": message}]}
    agent.invoke(said, {"configurable": {"thread_id": "one"}})
""",
    ),
    "pydantic-ai": (
        "pydantic_ai",
        """
from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

def tool(spec):
    def run(**arguments):
        return called(spec["name"], arguments)
    return Tool.from_schema(run, spec["name"], spec["description"], spec["schema"])

provider = OpenAIProvider(base_url=task["url"] + "/v1", api_key="none")
agent = Agent(
    OpenAIChatModel("scripted", provider=provider),
    instructions=task["system"],
    tools=[tool(spec) for spec in task["tools"]],
)
history = []
for message in task["messages"]:
    history = agent.run_sync(message, message_history=history).all_messages()
""",
    ),
}


async def peer_costs(asks: str, *, turns: int, plans: bool) -> dict[str, Cost]:
    """Returns what a session with these results costs in each agent that is installed, by its name. Raises RuntimeError
    with the last words of a program that fails, and TimeoutError.
    """
    costs = {}
    for name, (package, program) in PEERS.items():
        if (python := python_with(package)) is not None:
            costs[name] = await _talk(python, _BEGINNING + program, asks, turns=turns, plans=plans)
    return costs


async def _talk(python: str, program: str, asks: str, *, turns: int, plans: bool) -> Cost:
    requests, ends = Requests(), list[int]()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        turn = sum(message["role"] == "user" for message in body["messages"]) - 1
        if turn > requests.turn:
            ends.append(len(requests.bodies))
        requests.turn = turn
        message = reply(requests, body, TOOLS, asks=asks)
        requests.written += estimate(json.dumps(message))
        return message

    with tempfile.TemporaryDirectory() as folder:
        async with scripted(answer, TOOLS) as port:
            task = Path(folder) / "task.json"
            given = {
                "url": f"http://127.0.0.1:{port}",
                "system": TEXTS["system"],
                "tools": [
                    {"name": f"mcp_{each.name}", "description": each.description, "schema": each.input_schema}
                    for each in tools(TOOLS)
                ],
                "messages": [message_of(turn, TOOLS, plans=plans) for turn in range(turns)],
            }
            task.write_text(json.dumps(given), "utf-8")
            await _run(python, program, task)
    return cost_of(requests, [*ends, len(requests.bodies)])


async def _run(python: str, program: str, task: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        python, "-c", program, str(task), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TALK_TIMEOUT_S):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise RuntimeError("\n".join(said.decode().splitlines()[-5:]) or sys.executable)
