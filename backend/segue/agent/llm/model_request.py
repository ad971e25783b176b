"""What one call of the model sends, and its reply in our own names and ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from segue.agent.llm.amendments import Asked
from segue.agent.llm.normal_form import own_ids
from segue.agent.llm.reply import Reply
from segue.agent.llm.request_tokens import estimated_input
from segue.domain.usage import Charge
from segue.usage.account import Account
from segue.usage.prices import Tariff


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The same in every attempt unless it is refused.

    `names` are the tools' own names by those they are offered under, in the order of the offer. `key` is the one that
    it is sent with, if that may change.
    """

    runnable: Runnable[LanguageModelInput, AIMessage]
    messages: list[BaseMessage]
    asked: Asked
    names: Mapping[str, str]
    account: Account | None
    key: str = field(default="", repr=False)

    def at_most(self, tariff: Tariff) -> Charge:
        """Returns what the call takes if its answer is as long as can be."""
        return tariff.at_most(estimated_input(self.messages, self.asked.tools))

    def counted(self, reply: Reply) -> Reply:
        """Returns the reply with the tokens of its request, if the endpoint counted none."""
        return (
            replace(reply, input_tokens=estimated_input(self.messages, self.asked.tools)) if reply.estimated else reply
        )

    def in_own_terms(self, reply: Reply) -> Reply:
        """Returns the reply with our names and ids in its calls."""
        own = (
            replace(call, name=self.names.get(call.name, call.name), args=own_ids(call.args, self.asked.messages))
            for call in reply.calls
        )
        return replace(reply, calls=tuple(own), left_out=self.asked.left_out)
