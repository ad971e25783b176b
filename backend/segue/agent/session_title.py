"""Asks the model for the title of a conversation. What was said in it is data."""

from segue.agent.llm.model import ChatModel
from segue.agent.prompts import TITLER, as_json
from segue.agent.untrusted import neutralised
from segue.memory.sessions import first_words
from segue.tools.normalize import clean
from segue.usage.account import Account

MAX_TEXT_CHARS = 2000
_AROUND = " \"'“”„«»「」*#`."


async def propose_title(
    model: ChatModel, said: str, answer: str, *, language: str | None, account: Account
) -> str | None:
    """Returns a title of one short line, None if the model gave none. Raises AppError if it cannot be asked."""
    told = {"user": said[:MAX_TEXT_CHARS], "assistant": answer[:MAX_TEXT_CHARS]}
    given = as_json(told | ({"language": language} if language else {}))
    text: str = clean(await model.complete(TITLER, neutralised(given), account=account))
    return first_words(text.strip().partition("\n")[0].strip(_AROUND)) or None
