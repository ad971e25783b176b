"""Is the message a yes, a no, or something else? And, knowing that, may the web be searched because a toggle is on?"""

from langgraph.runtime import Runtime

from backend.agent.context import TurnContext
from backend.agent.state import TurnState, Update
from backend.plans.acknowledgement import classify
from backend.plans.policy import should_search_web


async def detect_acknowledgement(state: TurnState, _: Runtime[TurnContext]) -> Update:
    acknowledgement = classify(state["message"])
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}
