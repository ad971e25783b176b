"""Does the model answer? The smallest question there is, asked the way a turn asks."""

from langchain_core.messages import HumanMessage, SystemMessage

from segue.agent.model import ChatModel


async def probe(model: ChatModel) -> None:
    """Raises AppError `model_timeout` and `model_unavailable`."""
    await model.reply([SystemMessage("Answer with the one word: ok"), HumanMessage("Are you there?")])
