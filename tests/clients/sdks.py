"""Others' Python clients, as they are, talk to a service: `python sdks.py URL CLIENT…`. Prints what each was told.

Each asks for what takes a plan and says yes in the same conversation; those that can also ask for an object.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "none"}  # what they would fetch or miss
URL = f"{sys.argv[1]}/v1"


class City(BaseModel):
    reasoning: str
    name: str


async def agents(name: str, *, responses: bool, streamed: bool = False) -> list[str]:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    made = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
    model = made(model="segue", openai_client=AsyncOpenAI(base_url=URL, max_retries=0))
    agent: Agent[Any] = Agent(name="assistant", instructions="Be brief.", model=model)

    async def told(said: Any) -> Any:
        if not streamed:
            return await Runner.run(agent, said)
        result = Runner.run_streamed(agent, said)
        async for _ in result.stream_events():
            pass
        return result

    first = await told(asked(name))
    second = await told([*first.to_input_list(), {"role": "user", "content": "yes"}])
    third = await Runner.run(agent.clone(output_type=City), wanted(name))
    return [first.final_output, second.final_output, third.final_output.name]


async def pydantic_ai(name: str, *, responses: bool, streamed: bool = False) -> list[str]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    made = OpenAIResponsesModel if responses else OpenAIChatModel
    model = made("segue", provider=OpenAIProvider(base_url=URL, api_key="none"))
    agent = Agent(model, instructions="Be brief.")

    async def told(said: str, history: Any = None) -> tuple[str, Any]:
        if not streamed:
            result = await agent.run(said, message_history=history)
            return result.output, result.all_messages()
        async with agent.run_stream(said, message_history=history) as stream:
            return await stream.get_output(), stream.all_messages()

    first, history = await told(asked(name))
    second, _ = await told("yes", history)
    third = await agent.run(wanted(name), output_type=NativeOutput(City))
    return [first, second, third.output.name]


async def langchain(name: str, *, responses: bool, streamed: bool = False) -> list[str]:
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="segue", base_url=URL, max_retries=0, use_responses_api=responses)

    async def told(said: list[Any]) -> Any:
        if not streamed:
            return await model.ainvoke(said)
        pieces = [piece async for piece in model.astream(said)]
        return sum(pieces[1:], pieces[0])

    said: list[Any] = [HumanMessage(asked(name))]
    first = await told(said)
    second = await told([*said, first, HumanMessage("yes")])
    assert not first.tool_calls
    third: Any = await model.with_structured_output(City).ainvoke(wanted(name))
    return [first.text, second.text, third.name]


async def litellm(name: str, *, streamed: bool = False) -> list[str]:
    import litellm as library

    async def told(said: list[Any], **more: Any) -> str:
        options = {"api_base": URL, "api_key": "none", "num_retries": 0}
        answer: Any = await library.acompletion("openai/segue", said, stream=streamed, **options, **more)
        if not streamed:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    said = [{"role": "user", "content": asked(name)}]
    first = await told(said)
    second = await told([*said, {"role": "assistant", "content": first}, {"role": "user", "content": "yes"}])
    third = await told([{"role": "user", "content": wanted(name)}], response_format=City)
    return [first, second, City.model_validate_json(third).name]


async def llm(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLM_USER_PATH"] = folder
        declared = {
            "model_id": "segue",
            "model_name": "segue",
            "api_base": URL,
            "api_key_name": "",
            "supports_schema": True,
        }
        Path(folder, "extra-openai-models.yaml").write_text(json.dumps([declared]))
        import llm as library

        def talk() -> list[str]:
            model = library.get_model("segue")
            conversation = model.conversation()
            said = [conversation.prompt(each, key="none").text() for each in (asked(name), "yes")]
            return [*said, json.loads(model.prompt(wanted(name), schema=City, key="none").text())["name"]]

        return await asyncio.to_thread(talk)


def asked(name: str) -> str:
    return f"Find the things of {name}, then delete the first one"


def wanted(name: str) -> str:
    return f"Which city is the capital of {name}?"


CLIENTS: dict[str, Callable[[str], Awaitable[list[str]]]] = {
    "agents_responses": lambda name: agents(name, responses=True),
    "pydantic_ai_responses": lambda name: pydantic_ai(name, responses=True),
    "langchain_responses": lambda name: langchain(name, responses=True),
    "litellm": litellm,
    "llm": llm,
    "agents_chat": lambda name: agents(name, responses=False),
    "pydantic_ai_chat": lambda name: pydantic_ai(name, responses=False),
    "langchain_chat": lambda name: langchain(name, responses=False),
    "agents_responses_streamed": lambda name: agents(name, responses=True, streamed=True),
    "pydantic_ai_responses_streamed": lambda name: pydantic_ai(name, responses=True, streamed=True),
    "langchain_responses_streamed": lambda name: langchain(name, responses=True, streamed=True),
    "litellm_streamed": lambda name: litellm(name, streamed=True),
    "pydantic_ai_chat_streamed": lambda name: pydantic_ai(name, responses=False, streamed=True),
}


async def main(*names: str) -> None:
    told = await asyncio.gather(*(CLIENTS[name](name) for name in names))
    print(json.dumps(dict(zip(names, told, strict=True))))


asyncio.run(main(*sys.argv[2:]))
