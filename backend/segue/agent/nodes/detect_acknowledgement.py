"""Is the message a yes, a no, or something else? And, knowing that, may the web be searched because a toggle is on?"""

from langgraph.runtime import Runtime

from segue.agent.context import TurnContext
from segue.agent.state import TurnState, Update
from segue.plans.acknowledgement import classify
from segue.plans.policy import should_search_web


async def detect_acknowledgement(state: TurnState, _: Runtime[TurnContext]) -> Update:
    acknowledgement = classify(state["message"])
    search = should_search_web(state["message"], force=state["force_web_search"], verdict=acknowledgement.verdict)
    return {"acknowledgement": acknowledgement, "search": search}
