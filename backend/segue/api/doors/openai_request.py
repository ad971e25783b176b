"""What both of OpenAI's APIs share: a request, with what frontends add to it, as one message to an agent. Titles and
tags that a frontend wants of a conversation are one plain call of the small model, and no turn.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.requests import Request

from segue.api.attachments import SentFile, is_file, sent_files, words_of
from segue.api.chat import Client
from segue.api.doors.client_turns import MESSAGE_ID_HEADER, RETRY_HEADER, SentMessage
from segue.api.doors.every_door import agent_of, agents_of, find_session
from segue.api.schemas import Json
from segue.domain.errors import AppError, InvalidRequest, app_error
from segue.domain.field_types import doc
from segue.domain.identity import Charge
from segue.domain.session import LONGEST_MESSAGE, TurnOptions
from segue.history.fork_and_import import Said
from segue.language.lexicon import load_toml
from segue.tools.input_schema import ANY_OBJECT, schema_text

MAX_MESSAGES: Final = 5000
MAX_SOURCES: Final = 20  # of a message; the others become part of the last
MAX_PASSAGES: Final = 500
MAX_NUMBER_CHARS: Final = 10
TASK_BEGINS: Final = "### Task:"  # a title, tags and the like that Open WebUI asks for, and its template for sources
SOURCE: Final = '<source id="'
_SOURCE_END: Final = "</source>"
MOST_BETWEEN: Final = 5  # lines of a template between the words that it has and the user's
# Where a client says which conversation it is in: the first that is there counts.
CONVERSATION_HEADERS: Final = ("x-session-id", "x-openwebui-chat-id", "x-conversation-id")
NO_CONVERSATION: Final = frozenset({"", "new", "null"})
NO_CONVERSATION_PREFIX: Final = "local:"  # Open WebUI's temporary chats, all those of one tab
_ROLES: Final = ("user", "assistant", "system", "developer", "tool", "function")
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_RESPONSE: Final = "resp_"
CHAT_HISTORY: Final = "<chat_history>"  # in what Open WebUI asks for about a conversation
TASK_MODEL: Final = "-title"  # LibreChat's: the agent's id and this
INSTRUCTIONS: Final = "You do a small task about a conversation. Answer with what is asked for and nothing else."
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output", "tool", "function")
MAX_INSTRUCTIONS_CHARS: Final = 32_000
StopText = Annotated[str, Field(min_length=1, max_length=100)]
Stops = Annotated[list[StopText], Field(max_length=4)]
_UNSUPPORTED: Final[Mapping[str, Sequence[Any]]] = load_toml("unsupported.toml", package="segue.api.doors")


def _with_role(message: Json) -> Json:
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"There is no role {str(role)[:50]!r}: there are {', '.join(_ROLES)}.")
    return message


def _role_or_type(item: Json) -> Json:
    return item if item.get("role") is None and isinstance(item.get("type"), str) else _with_role(item)


_ROLE: Final = {"properties": {"role": {"type": "string", "enum": list(_ROLES)}}, "required": ["role"]}
_TYPE: Final = {"properties": {"type": {"type": "string"}}, "required": ["type"]}
Sent = Annotated[Json, AfterValidator(_with_role), WithJsonSchema({"type": "object", **_ROLE})]
SentItem = Annotated[Json, AfterValidator(_role_or_type), WithJsonSchema({"type": "object", "anyOf": [_ROLE, _TYPE]})]
Messages = Annotated[list[Sent], Field(min_length=1, max_length=MAX_MESSAGES)]
Items = Annotated[list[SentItem], Field(min_length=1, max_length=MAX_MESSAGES)]
TokenLimit = Annotated[Annotated[int, Field(ge=1, lt=2**31)] | None, doc("The most tokens of each model answer.")]


class OpenAIBody(BaseModel):
    """What both APIs take. Its other fields are refused as unsupported.toml says, or taken and change nothing."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1, max_length=200), doc("The id of an agent, from `GET /v1/models`.")]
    stream: Annotated[bool | None, doc("Whether to answer with events.")] = None
    conversation: Annotated[str | Json | None, doc("The id of the conversation, or an object with it as `id`.")] = None
    metadata: Annotated[Json | None, doc("`session_id`, `thread_id` or `conversation_id` names the session.")] = None
    temperature: Annotated[float | None, Field(ge=0, le=2), doc("The temperature of the model, if it has one.")] = None

    @property
    def given(self) -> Json:
        """Returns what is read of it. A field of the other API alone is none here, and may hold anything."""
        return self.model_dump(include={*type(self).model_fields, *_UNSUPPORTED, "previous_response_id"})


class CompletionBody(OpenAIBody):
    """A conversation whose last message is new. docs/frontends.md says which other fields are refused."""

    messages: Annotated[Messages, doc("The messages. Only the user's last one is new.")]
    stream_options: Annotated[Json | None, doc("With `include_usage` the last chunk has the usage of the turn.")] = None
    response_format: Annotated[Json | None, doc("The format of the answer: `json_schema` or `json_object`.")] = None
    stop: Annotated[StopText | Stops | None, doc("Texts before the first of which the answer ends.")] = None
    max_tokens: TokenLimit = None
    max_completion_tokens: TokenLimit = None


class ResponseBody(OpenAIBody):
    """A message, or items of which the last is new. docs/frontends.md says which other fields are refused."""

    input: Annotated[str | Items, doc("The user's message, or items of which only the user's last message is new.")]
    previous_response_id: Annotated[str | None, doc("The id of the response to go on from.")] = None
    instructions: Annotated[str | None, doc("Instructions that follow the agent's own.")] = None
    text: Annotated[Json | None, doc("The `format` of the answer: `json_schema` or `json_object`.")] = None
    max_output_tokens: TokenLimit = None
    background: Annotated[bool | None, doc("Whether to answer at once without waiting.")] = None


async def options_of(messages: Sequence[Json], body: Json) -> TurnOptions:
    """Returns what is asked of the turn. Raises AppError `unsupported_parameter` for what is not done."""
    for name, (harmless, why) in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in harmless:
            raise unsupported(name, why)
    parts = [body.get("instructions") or "", texts(messages, "system", "developer")]
    instructions = "\n\n".join(filter(None, (each.strip() for each in parts)))
    if len(instructions) > MAX_INSTRUCTIONS_CHARS:
        raise unsupported("instructions", f"Instructions have {MAX_INSTRUCTIONS_CHARS} characters at most.")
    stop = body.get("stop") or ()
    limits = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    return TurnOptions(
        output_schema=await _schema_of(body),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens=next(filter(None, limits), None),
        temperature=body.get("temperature"),
        instructions=instructions or None,
    )


async def _schema_of(body: Json) -> str | None:
    """Returns the schema in `response_format`, or in `text` of a response."""
    form, param = body.get("response_format"), "response_format"
    if form is None:
        form, param = (body.get("text") or {}).get("format"), "text.format"
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return ANY_OBJECT
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} | {"schema": dict(schema)}:
            try:
                return await schema_text(schema)
            except InvalidRequest as unfit:
                raise unsupported(param, unfit.detail) from unfit
    raise unsupported(param, "It is `json_schema` with a `schema`, `json_object` or `text`.")


def unsupported(param: str, why: str) -> AppError:
    return app_error("unsupported_parameter", param=param, why=why, extra={"param": param})


async def message_of(http: Request, messages: Sequence[Json], body: Json) -> SentMessage:
    """`body` may name the conversation. A conversation that ends with the output of a tool is that of the turn which
    has run it: the user's last message again. Raises AppError `invalid_request`, `parts_unsupported`,
    `unsupported_parameter`, NotFound for a `previous_response_id` that is none of ours.
    """
    spoken = [message for message in messages if message.get("role") in ("user", "assistant")]
    has_run = any(messages[-1].get(name) in _OUTPUTS for name in ("type", "role"))
    while has_run and spoken and spoken[-1]["role"] == "assistant":
        spoken.pop()
    if not spoken or spoken[-1]["role"] != "user":
        raise InvalidRequest("The last message has to be the user's: an answer is not continued, and tools run here.")
    content = spoken[-1].get("content")
    text, sources = _said(http, content, is_new=True)
    if not text:
        raise InvalidRequest("The last message has no text.")
    client_id, after = conversation_of(http, body)
    retries = http.headers.get(RETRY_HEADER, "")
    return SentMessage(
        text=text,
        files=(*await sent_files(content), *sources),
        count=sum(message["role"] == "user" for message in spoken),
        earlier=lambda: [_said_earlier(http, each) for each in spoken[:-1]],
        agent=body["model"],
        client_id=client_id,
        after=after,
        message_id=http.headers.get(MESSAGE_ID_HEADER) or None,
        parent_id=http.headers.get("x-openwebui-user-message-parent-id"),
        is_retry=True if has_run else bool(retries.strip("0")) if retries.isdecimal() else None,
        options=await options_of(messages, body),
        stream=bool(body.get("stream")),
    )


_FIRST_SOURCE: Final = re.compile(f"(?:^|<context>){SOURCE}", re.MULTILINE)  # elsewhere a template may speak of one
_CLOSING: Final = re.compile(r"(?:\s{0,9}</[\w-]{1,40}>[ \t]{0,9}(?=\n)){1,5}")
_FILES: Final = re.compile(r"\A<attached_files>\n(?:<file [^\n]*/>\n)*</attached_files>\s*")
_QUERY: Final = re.compile(r"<((?:user_)?(?:query|question|message|prompt|input|request))>")


def unwrapped(http: Request, text: str) -> tuple[str, Sequence[SentFile]]:
    """Returns what the user says in a message, and the sources that Open WebUI found for it. Its template, which its
    operator can change, stands around the sources, then come the files of the chat by name, and the user's words. No
    part of a source is taken for words of the user's: they begin behind the last end of one.
    """
    first = _FIRST_SOURCE.search(text)
    template = text[: first.end() - len(SOURCE)].rstrip() if first else ""
    has_context = template.endswith("<context>")
    if first is None or not (has_context or is_open_webui(http) or template.startswith(TASK_BEGINS)):
        return _FILES.sub("", text), ()
    ends = (f"{_SOURCE_END}{gap}</context>" for gap in ("\n", "")) if has_context else ()
    end = max((text.rfind(each) for each in ends), default=-1)
    end = end if end >= 0 else text.rfind(_SOURCE_END)
    words = _said_behind(text[end + len(_SOURCE_END) :])
    return (_FILES.sub("", words), _sources_in(text[first.start() : end])) if end >= 0 and words else (text, ())


def _said_behind(rest: str) -> str:
    """Returns the user's words. A template may have them too: before them, or alone."""
    rest = rest[closing.end() :] if (closing := _CLOSING.match(rest)) else rest
    text = rest.strip()
    lines = text.split("\n") if len(text) <= 2 * LONGEST_MESSAGE else []
    for between in range(MOST_BETWEEN + 1):
        count = (len(lines) - between) // 2
        words = "\n".join(lines[len(lines) - count :]).strip()
        before = "\n".join(lines[: len(lines) - count]).rstrip()
        before = before.rpartition("</")[0].rstrip() if before.endswith(">") else before
        if words and before.endswith(words) and before[: -len(words)].rstrip()[-1:] in ("", ">", ":", "："):
            return words
    query = _QUERY.match(text)
    return text[query.end() : -len(query[0]) - 1].strip() if query and text.endswith(f"</{query[1]}>") else text


def _sources_in(block: str) -> Sequence[SentFile]:
    """Passages of one number are one source."""
    found: dict[str, tuple[str, list[str]]] = {}
    for passage in block.split(SOURCE, MAX_PASSAGES)[1:]:
        head, _, text = passage.partition(">")
        number, _, about = head.partition('"')
        number = number[:MAX_NUMBER_CHARS]
        if len(found) == MAX_SOURCES and number not in found:
            number = next(reversed(found))
        name = about.partition('name="')[2].partition('"')[0] or number
        found.setdefault(number, (name, []))[1].append(text.rstrip().removesuffix(_SOURCE_END))
    files = ((name, "\n\n".join(texts).encode(), f"[{number}]") for number, (name, texts) in found.items())
    return [SentFile(name, content, mark=mark) for name, content, mark in files if content]


def is_open_webui(http: Request) -> bool:
    return any(name.startswith("x-openwebui-") for name in http.headers)


def texts(messages: Sequence[Json], *roles: str) -> str:
    return "\n\n".join(_text(each.get("content")) for each in messages if each.get("role") in roles)


def response_id(session_id: str, turn_id: str) -> str:
    """Says which session and turn it is of, so that nothing has to be kept to find them."""
    return _RESPONSE + session_id.partition("_")[2] + turn_id.partition("_")[2]


def turn_of_response(response_id: str) -> tuple[str, str]:
    """Returns the ids of a response's session and turn, which there may be none of."""
    names = response_id.removeprefix(_RESPONSE)
    return f"ses_{names[:26]}", f"turn_{names[26:]}"


def conversation_of(http: Request, body: Json) -> tuple[str | None, str | None]:
    """Returns the id of the conversation, and the turn to go on after if the client says which."""
    given: list[tuple[object, str | None]] = [(http.headers.get(name), None) for name in CONVERSATION_HEADERS]
    conversation = body.get("conversation")
    given.append((conversation.get("id") if isinstance(conversation, dict) else conversation, None))
    if isinstance(previous := body.get("previous_response_id"), str) and previous not in NO_CONVERSATION:
        given.append(turn_of_response(previous))
    metadata = body.get("metadata") or {}
    given += [(metadata.get(name), None) for name in ("session_id", "thread_id", "conversation_id")]
    for client_id, after in given:
        if client_id is not None and not isinstance(client_id, str):
            raise InvalidRequest("The id of a conversation is a text.")
        if client_id and client_id not in NO_CONVERSATION and not client_id.startswith(NO_CONVERSATION_PREFIX):
            return client_id, after
    return None, None


def _text(content: object) -> str:
    return "\n".join(_texts_in(content))


def _said(http: Request, content: object, *, is_new: bool = False) -> tuple[str, Sequence[SentFile]]:
    """Returns the words of a message and its sources. Each part of its text may be wrapped."""
    parts = [unwrapped(http, text) for text in _texts_in(content, is_new=is_new)]
    text = words_of("\n".join(words for words, _ in parts if words), content)
    return text, next((found for _, found in parts if found), ())


def _said_earlier(http: Request, message: Json) -> Said:
    text = _said(http, message.get("content"))[0] if message["role"] == "user" else _text(message.get("content"))
    return Said(message["role"], text)


def _texts_in(content: object, *, is_new: bool = False) -> list[str]:
    """Returns the texts of a message's content. Of a new message every part has to be text or a file."""
    match content:
        case str():
            return [content]
        case None:
            return []
        case list():
            return [text for part in content if (text := _part(part, is_new=is_new))]
        case _:
            raise InvalidRequest("The content of a message is a text or a list of parts.")


def _part(part: object, *, is_new: bool) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and isinstance(kind, str) and kind in _TEXTS and isinstance(part.get(_TEXTS[kind]), str):
        return str(part[_TEXTS[kind]])
    if not is_new or is_file(part):
        return ""
    raise app_error("parts_unsupported", why=f"A part of the type {str(kind)[:50]!r} cannot be read.")


def is_task(client: Client, messages: Sequence[Json], body: Json) -> bool:
    """Open WebUI says with each request whether it is one, if its headers are set up so. Else the form tells. In a
    session that is named, a text that looks like a task is the user's unless it quotes the conversation.
    """
    agents, model = agents_of(client), body["model"]
    if model not in agents and model.removesuffix(TASK_MODEL) in agents:
        return True
    if (task := client.http.headers.get("x-openwebui-task")) is not None:
        return bool(task)
    users = [message for message in messages if message.get("role") == "user"]
    text = texts(users, "user")
    if len(users) != 1 or not text.startswith(TASK_BEGINS):
        return False
    is_named = is_open_webui(client.http) or conversation_of(client.http, body)[0] is not None
    return CHAT_HISTORY in text.partition(SOURCE)[0] or not (is_named or SOURCE in text)


async def do_task(client: Client, messages: Sequence[Json], body: Json) -> tuple[str, Charge]:
    """Returns the text and what it took, which the caller and the session that the task is about are charged. Raises
    what a call of the model raises, AppError `unknown_agent`.
    """
    model = body["model"]
    speaker = agent_of(client, model if model in agents_of(client) else model.removesuffix(TASK_MODEL))
    client_id, _ = conversation_of(client.http, body)
    session = await find_session(client, client_id) if client_id else None
    instructions = texts(messages, "system", "developer") or INSTRUCTIONS
    text = texts(messages, "user", "assistant")
    if not text.strip():
        raise InvalidRequest("The task has no message.")
    session_id = session.id if session else ""
    return await client.services.turns.complete(client.caller, speaker, instructions, text, session_id=session_id)
