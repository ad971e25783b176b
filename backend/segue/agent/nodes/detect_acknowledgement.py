"""Reads the message as a yes, a no or something else, and decides whether a search that was asked for makes sense."""

from langgraph.runtime import Runtime

from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.plans.acknowledgement import classify
from segue.plans.policy import should_search_web


async def detect_acknowledgement(state: TurnState, runtime: Runtime[TurnContext]) -> Update:  # noqa: ARG001 (a node's)
    acknowledgement = classify(state["message"])
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}
