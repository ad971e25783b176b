"""Reads the message as a yes, a no or something else, and decides whether a search that was asked for makes sense."""

from dataclasses import replace

from langgraph.runtime import Runtime

from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.plans.acknowledgement import Acknowledgement, classify
from segue.plans.policy import should_search_web
from segue.plans.question import Question, joined, question_in, question_of


async def detect_acknowledgement(state: TurnState, runtime: Runtime[TurnContext]) -> Update:  # noqa: ARG001 (a node's)
    if state["amends"]:
        acknowledgement = Acknowledgement("amend", "button")
    else:
        acknowledgement = classify(state["message"], question=_question(state))
        if acknowledgement.verdict == "confirm" and state["attachments"]:
            acknowledgement = replace(acknowledgement, verdict="amend", rule="attachment", strength=None)
        if state["attachments"]:
            acknowledgement = replace(acknowledgement, carries_yes=False)
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}


def _question(state: TurnState) -> Question | None:
    """Returns what the message may answer: the steps that wait, or the offer that the last answer ends with."""
    stored = state["open_plan"]
    if stored is not None and (steps := stored.plan.waiting_steps):
        return joined([question_of(step.tool, step.description, step.args) for step in steps])
    return question_in(state["answered"])
