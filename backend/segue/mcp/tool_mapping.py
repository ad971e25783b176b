"""Turns an MCP server's tools and results into Segue's. Pure, but for warnings in the log. All of it is data: bounded,
and without hidden Unicode. A tool that does not fit is skipped, never the whole server.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, assert_never

import mcp_types
from mcp_types import Tool as McpTool
from mcp_types.methods import validate_server_result
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from segue.domain.ids import NOT_IN_A_TOOL_NAME, TOOL_NAME, offered_name
from segue.domain.tool import SettlingCheck, Tool, ToolContext, ToolFailed, ToolSpec
from segue.log import log
from segue.mcp.call_failures import MAX_ERROR_CHARS
from segue.mcp.guessed_effects import effect_of
from segue.mcp.large_messages import MAX_TOOL_BYTES, MAX_TOOLS, OF_A_RESULT, UNREAD, unpacked
from segue.mcp.mcp_config import McpServerConfig
from segue.mcp.status import LeftOut
from segue.tools.input_schema import REFERENCES, InputSchema, UnfitSchema
from segue.tools.normalize import UNKNOWN, Unread, clean, clean_text
from segue.tools.summaries import shortened
from segue.tools.unknown_outcomes import read_check, unfit, with_call_id, without_argument

ToolCaller = Callable[..., Awaitable[object]]  # as Supervisor.call

_MAX_SCHEMA_BYTES: Final = 32 * 1024
_MAX_TOOLS_BYTES: Final = 2_000_000  # of a server
_MAX_DESCRIPTION: Final = 2000
_LARGEST: Final = 2**63
_MAX_LEFT_OUT: Final = 50
_SDK_PREFIX = re.compile(r"^Error executing tool [^:\n]{1,128}: ")
_WRAPPED: Final = "x-fastmcp-wrap-result"
_VERIFY: Final = "segue/verify"  # in the `_meta` of a tool
_MALFORMED: Final = "x-segue-malformed"  # there too
_JOINERS: Final = "\u200c\u200d"
_LONE_JOINER: Final = re.compile(rf"(?<![^\x00-\x7f{_JOINERS}])[{_JOINERS}]|[{_JOINERS}](?![^\x00-\x7f{_JOINERS}])")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_BLOCK: Final = TypeAdapter[mcp_types.ContentBlock](mcp_types.ContentBlock)
_DEFAULTS: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_WITH_ICONS: Final = ("content", "prompts", "resourceTemplates", "resources", "serverInfo", "tools")
_EXACT: Final = frozenset({*REFERENCES, "$anchor", "$id", "const", "default", "enum", "pattern", "required"})
_NAMED: Final = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}


def readable_result(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result with what servers leave out, or say as null, and with blocks of content that the SDK does not
    read as the texts of them: it would refuse all of it after the effect. Icons, of which drafts of the protocol had
    another form, are not used.
    """
    said = _DEFAULTS | {name: each for name, each in result.items() if each is not None}
    for named in (each for name in _WITH_ICONS for each in _listed(said.get(name))):
        named.pop("icons", None)
    if (content := said.get("content")) is not None:
        said["content"] = list(map(_readable_block, content if isinstance(content, list) else [content]))
    if isinstance(said.get("structuredContent", {}), dict):
        return {"content": [], **said} if result.keys() & OF_A_RESULT else said
    text = json.dumps(said.pop("structuredContent"), ensure_ascii=False)
    return said | {"content": said.get("content") or [{"type": "text", "text": text}]}


def _readable_block(block: Any) -> Any:
    if isinstance(block, dict):
        block.pop("annotations", None)  # unused, and some servers have other values in them
        block.setdefault("type", "text")
    try:
        _BLOCK.validate_python(block)
    except ValidationError:
        return {"type": "text", "text": block if isinstance(block, str) else json.dumps(block, ensure_ascii=False)}
    return block


def _listed(value: Any) -> list[dict[str, Any]]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]


def without_broken_tools(server: str, result: dict[str, Any]) -> dict[str, Any]:
    """Returns a `tools/list` result that the SDK accepts: it refuses the whole list for one malformed entry.
    `tools_of` leaves out what stands in the place of that.
    """
    listed = result.get("tools")
    if not isinstance(listed, list):
        return result
    if len(listed) > MAX_TOOLS:
        log.warning("mcp_tools_cut", server=server, announced=len(listed), kept=MAX_TOOLS)
    return {**result, "tools": [_unchecked(_well_formed(tool)) for tool in listed[:MAX_TOOLS]]}


def _unchecked(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns the tool with a mark for `value_of` in place of its output schema, by which the SDK would refuse results
    after the effect, and in the event loop, with patterns that can be made to run for hours.
    """
    if not isinstance(schema := tool.get("outputSchema"), dict):
        return tool
    marked = {**(tool.get("_meta") or {}), _WRAPPED: _is_wrapped(tool["name"], schema)}
    return {**tool, "outputSchema": None, "_meta": marked}


def _well_formed(tool: object) -> dict[str, Any]:
    said = tool if isinstance(tool, dict) else {}
    if isinstance(schema := said.get("inputSchema"), dict):
        said = {**said, "inputSchema": {"type": "object", **schema}}  # which some leave out, as it is always that
    without_output = {key: value for key, value in said.items() if key != "outputSchema"}
    for candidate in (said, without_output):
        written = to_json(candidate)
        if len(written) > MAX_TOOL_BYTES:
            continue
        try:
            validate_server_result("tools/list", "2025-11-25", {"tools": [candidate]})
        except ValidationError:
            continue
        return clean(candidate) if b"\\u0000" in written else candidate  # Postgres takes no NUL
    name = clean_text(str(said.get("name", "?"))[:64])
    return {"name": name, "inputSchema": {"type": "object"}, "_meta": {_MALFORMED: True}}


def tools_of(
    server: str, config: McpServerConfig, listed: Sequence[McpTool], call: ToolCaller, timeout_s: float
) -> tuple[list[Tool], list[LeftOut]]:
    """Returns the tools that can be offered, and the others, for which there is a warning too."""
    tools: dict[str, Tool] = {}
    left_out: list[LeftOut] = []
    secrets, room = config.secrets, _MAX_TOOLS_BYTES
    plain = Counter(_plain_name(config.prefix, name) for name in {each.name for each in listed} if config.offers(name))
    named = partial(_name, config.prefix, {name for name, tools in plain.items() if tools > 1})
    for tool in listed:
        if not config.offers(tool.name):
            continue
        room -= len(to_json([tool.description, tool.input_schema]))
        if room < 0:
            log.warning("mcp_tools_cut", server=server, announced=len(listed), kept=len(tools))
            left_out.insert(0, LeftOut(_visible(tool.name)[:64], "with it, and all after it, the list is over 2 MB"))
            break
        try:
            spec = _spec(server, config, tool, timeout_s, named)
        except ValueError as unfit:
            left_out.append(_left_out(server, tool, str(unfit)))
            continue
        if spec.name in tools:
            left_out.append(_left_out(server, tool, "a second tool of this name"))
            continue
        called = partial(call, spec, wrapped=(tool.meta or {}).get(_WRAPPED) is True)
        run = with_call_id(partial(_run, called), spec.idempotency_arg)
        tools[spec.name] = Tool(spec, run, secrets=secrets, audience=config.audience_of(tool.name))
    return _with_fit_checks(server, tools), left_out[:_MAX_LEFT_OUT]


def _with_fit_checks(server: str, tools: Mapping[str, Tool]) -> list[Tool]:
    """Returns the tools, without checks by tools that are not there or may change something."""
    specs = {name: tool.spec for name, tool in tools.items()}
    kept = []
    for name, tool in tools.items():
        why = unfit(name, tool.spec.verify, specs) if tool.spec.verify else None
        if why is not None:
            log.warning("mcp_verify_unfit", server=server, reason=why)
        kept.append(replace(tool, spec=replace(tool.spec, verify=None)) if why else tool)
    return kept


def _left_out(server: str, tool: McpTool, reason: str) -> LeftOut:
    name = _visible(tool.name)[:64]
    log.warning("mcp_tool_skipped", server=server, tool=name, reason=reason)
    return LeftOut(name, reason)


async def _run(call: ToolCaller, arguments: dict[str, Any], context: ToolContext) -> object:
    """A server learns nothing of the context."""
    return await call(arguments, context=context)


def _spec(
    server: str, config: McpServerConfig, tool: McpTool, timeout_s: float, named: Callable[[str], str]
) -> ToolSpec:
    """Raises ValueError, which says why, for a tool that cannot be offered."""
    hints = tool.annotations
    if (tool.meta or {}).get(_MALFORMED):
        raise ValueError("malformed or over 64 kB")
    if tool.execution is not None and tool.execution.task_support == "required":
        raise ValueError("it runs as a task only (taskSupport: required), which Segue does not have")
    effect, effect_guessed = effect_of(tool.name, hints, config.unannotated)

    schema, annotated = _schema(tool.name, tool.input_schema), (tool.meta or {}).get("segue/idempotency_arg")
    idempotency_arg = config.idempotency_arg.get(tool.name) or (annotated if isinstance(annotated, str) else "")
    schema = without_argument(schema, idempotency_arg) if idempotency_arg else schema
    check = _check(server, config, tool)
    return ToolSpec(
        name=named(tool.name),
        description=shortened(_visible(tool.description or tool.title or tool.name).strip(), _MAX_DESCRIPTION),
        input_schema=schema,
        source=f"mcp:{server}",
        effect=effect,
        effect_guessed=effect_guessed,
        idempotent=bool(hints and hints.idempotent_hint),
        confirm=config.confirm.get(tool.name),
        timeout_s=timeout_s,
        max_timeout_s=config.max_timeout_s,
        original_name=tool.name,
        title=_visible(tool.title or (hints and hints.title) or "").strip()[:200],
        depends_on=tuple(
            replace(group, tools=tuple(map(named, group.tools)), optional=tuple(map(named, group.optional)))
            for group in config.depends_on.get(tool.name, ())
        ),
        verify=check and replace(check, tool=named(check.tool)),
        idempotency_arg=idempotency_arg,
    )


def _check(server: str, config: McpServerConfig, tool: McpTool) -> SettlingCheck | None:
    """Returns how calls of a tool are settled: as mcp.json says, else as the server's own annotation does."""
    if (configured := config.verify.get(tool.name)) is not None:
        return configured
    if (annotated := (tool.meta or {}).get(_VERIFY)) is None:
        return None
    try:
        return read_check(annotated)
    except ValueError as fault:
        log.warning("mcp_verify_unfit", server=server, reason=f"{tool.name}: {fault}"[:MAX_ERROR_CHARS])
        return None


def _plain_name(prefix: str, name: str) -> str:
    return prefix + NOT_IN_A_TOOL_NAME.sub("_", name)


def _name(prefix: str, shared: Collection[str], name: str) -> str:
    """`shared` are names that several tools come to, such as mail.get and mail_get: the one called so gets it."""
    full = _plain_name(prefix, name)
    if not name:
        raise ValueError("its name is empty")
    is_plain = all(map(str.isascii, filter(str.isalnum, name)))  # else 搜索 and 删除 would both be called `__`
    return full if is_plain and TOOL_NAME.fullmatch(full) and full not in shared else offered_name(prefix + name)


def _visible(text: str) -> str:
    """Removes format, control, tag and variation characters; a joiner stays between two non-ASCII characters."""
    plain = _VARIATION_SELECTORS.sub("", text)
    kept = (char for char in plain if char in f"\n\t{_JOINERS}" or not unicodedata.category(char).startswith("C"))
    return _LONE_JOINER.sub("", "".join(kept))


def _schema(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise ValueError("its input schema is not that of an object")
    cleaned: dict[str, Any] = _clean(schema)
    if len(json.dumps(cleaned, ensure_ascii=False).encode(errors="replace")) > _MAX_SCHEMA_BYTES:
        raise ValueError(f"its input schema is over {_MAX_SCHEMA_BYTES // 1024} kB")
    try:
        InputSchema(cleaned, tool=name)
    except UnfitSchema as unfit:
        raise ValueError(f"its input schema cannot be used: {unfit}") from None
    return cleaned


def _clean(node: Any, under: str = "") -> Any:
    """The schema with visible texts only, but values as they are; a reference to elsewhere is refused, as resolving it
    would be a request. `under` is the keyword that has the node as its value.
    """
    if isinstance(node, list):
        return [_clean(item, under) for item in node]
    if isinstance(node, str):
        return node if under in _EXACT else _visible(node)
    if isinstance(node, int | float) and not abs(node) < _LARGEST:
        raise ValueError("its input schema has a number that JSON cannot carry")
    if not isinstance(node, Mapping):
        return node
    if under in _EXACT:
        return {key: _clean(each, under) for key, each in node.items()}
    if under in _NAMED:
        return {name: _clean(schema) for name, schema in node.items() if schema is not None}
    if any(isinstance(ref := node.get(key), str) and not ref.startswith("#") for key in REFERENCES):
        raise ValueError("its input schema refers to another document")
    # Servers write null for what a schema does not say, and `required` beside the type of a property.
    nothing = {"required": (None, True, False), "const": (), "default": ()}
    stated = {key: each for key, each in node.items() if each not in nothing.get(key, (None,))}
    return {key: _clean(each, key) for key, each in stated.items()}


def _is_wrapped(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether plain return values are declared to come as {"result": …}: FastMCP sets a mark, the SDK a title."""
    properties = schema.get("properties")
    has_only_a_result = isinstance(properties, dict) and set(properties) == {"result"}
    return schema.get(_WRAPPED) is True or (has_only_a_result and schema.get("title") == f"{name}Output")


def value_of(result: mcp_types.CallToolResult, *, wrapped: bool) -> object:
    """Returns the structured value of a result, or its content; a large one Unread. Raises ToolFailed for an error."""
    if result.is_error:
        said = "\n".join(filter(None, map(words_of, result.content))).strip()
        if not said and result.structured_content:
            said = to_json(result.structured_content).decode()
        error = _SDK_PREFIX.sub("", said)[:MAX_ERROR_CHARS]
        raise ToolFailed(error or "The tool says that it failed, without a reason.")
    value = result.structured_content
    if isinstance(value, dict) and isinstance(text := value.get(UNREAD), str):
        return Unread(text, partial(_value_in, wrapped=wrapped))
    if value is None:
        blocks = [_block(block) for block in result.content]
        return blocks[0] if len(blocks) == 1 else blocks or None
    if wrapped and isinstance(value, dict) and set(value) == {"result"}:
        value = value["result"]
    written = to_json(value).decode()
    others = [_block(block) for block in result.content if not _repeats(block, written)]
    if not others:
        return value
    texts = [each for each in others if isinstance(each, str)]
    files = [each for each in others if not isinstance(each, str)]
    beside = {name: said for name, said in (("text", "\n".join(texts)), ("files", files)) if said}
    return value | beside if isinstance(value, dict) and value.keys().isdisjoint(beside) else [value, *others]


def _repeats(block: mcp_types.ContentBlock, written: str) -> bool:
    """Whether a block says no more than the structured value, in JSON: most servers repeat that for older clients."""
    if not isinstance(block, mcp_types.TextContent):
        return isinstance(block, mcp_types.ResourceLink) and block.uri in written
    said = _block(block)
    return not isinstance(said, str) or json.dumps(said.strip(), ensure_ascii=False)[1:-1] in written


def _value_in(packed: str, *, wrapped: bool) -> object:
    result = readable_result(json.loads(unpacked(packed)))
    return value_of(mcp_types.CallToolResult.model_validate(result), wrapped=wrapped)


def _block(block: mcp_types.ContentBlock) -> object:
    """Text as text or as the JSON it is; base64 beside its media type."""
    match block:
        case mcp_types.TextContent(text=text):
            if not text.lstrip().startswith(("{", "[")):
                return text
            try:
                return json.loads(text, parse_constant=_refuse)
            except (ValueError, RecursionError):
                return text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return {"type": block.type, "mime_type": block.mime_type, "data": block.data}
        case mcp_types.ResourceLink():
            about = {"title": block.title, "description": block.description}
            link = {"type": block.type, "uri": block.uri, "name": block.name} | {k: v for k, v in about.items() if v}
            return link | {"mime_type": block.mime_type, "size_bytes": block.size}
        case mcp_types.EmbeddedResource(resource=resource):
            return {"type": block.type} | resource_value(resource)
        case _:
            assert_never(block)


def words_of(block: mcp_types.ContentBlock) -> str:
    """Returns the text of a block, empty if it is none."""
    match block:
        case (
            mcp_types.TextContent(text=text)
            | mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text))
        ):
            return text
        case _:
            return ""


def resource_value(resource: mcp_types.TextResourceContents | mcp_types.BlobResourceContents) -> dict[str, object]:
    if isinstance(resource, mcp_types.BlobResourceContents):
        return {"uri": resource.uri, "mime_type": resource.mime_type or UNKNOWN, "blob": resource.blob}
    size_bytes = len(resource.text.encode(errors="replace"))
    return {"uri": resource.uri, "mime_type": resource.mime_type, "size_bytes": size_bytes, "text": resource.text}


def _refuse(constant: str) -> None:
    raise ValueError(constant)
