"""`@tool` makes a tool of an async function with type hints and a docstring. Public: `from segue import tool`."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Final, NoReturn, TypeVar, cast, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from segue.domain.errors import app_error
from segue.domain.ids import TOOL_NAME
from segue.domain.tool import Audience, DependencyGroup, Effect, Tool, ToolConfirm, ToolContext, ToolRetry, ToolSpec
from segue.tools.unknown_outcomes import read_check, with_call_id, without_argument

SOURCE: Final = "native"
ENTRY_POINTS: Final = "segue.tools"

_MADE: Final = "__segue_tool__"
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Function = TypeVar("Function", bound=Callable[..., Awaitable[object]])


def tool(  # noqa: PLR0913 (each names a property of the tool)
    *,
    effect: Effect,
    confirm: ToolConfirm | None = None,
    depends_on: Sequence[str | DependencyGroup] = (),
    idempotent: bool = False,
    timeout_s: float | None = None,
    name: str = "",
    title: str = "",
    groups: Collection[str] = (),
    verify: Mapping[str, Any] | None = None,
    idempotency_arg: str = "",
) -> Callable[[Function], Function]:
    """Makes a tool of the function: the name is its own, the description its docstring, the arguments its hints.

    `effect` and `confirm` decide whether a call waits for a yes; `effect` and `idempotent`, whether it may run again
    after a crash. A name in `depends_on` is a tool that has to have succeeded in the session before. A parameter that
    is a `ToolContext` is given by Segue and not by the model, and so is the one called `idempotency_arg`: the id of the
    call, under which it may be made again after a crash. `verify` names a tool of this program that only reads, and
    what its answer shows of a call that did not answer. With `groups` the tool exists only for users in one of them.
    Raises TypeError if no tool can be made of the function.
    """

    def decorate(function: Function) -> Function:
        called = name or getattr(function, "__name__", "")
        if confirm not in (None, True, False, "always_ask"):
            _refuse(called, "needs a confirm that is True, False or 'always_ask'")
        arguments, context = _arguments(function, called)
        schema = arguments.json_schema(schema_generator=_WithoutTitles)
        try:
            check = read_check(verify) if verify is not None else None
            schema = without_argument(schema, idempotency_arg) if idempotency_arg else schema
        except ValueError as unfit:
            _refuse(called, f"cannot be settled: {unfit}")
        spec = ToolSpec(
            name=called,
            description=_description(function, called, effect),
            input_schema=schema,
            source=SOURCE,
            effect=effect,
            idempotent=idempotent,
            confirm=confirm,
            timeout_s=timeout_s,
            title=title,
            depends_on=tuple(DependencyGroup("all", (each,)) if isinstance(each, str) else each for each in depends_on),
            verify=check,
            idempotency_arg=idempotency_arg,
        )

        async def run(given: dict[str, Any], who: ToolContext) -> object:
            try:
                read = arguments.validate_python(given)
            except ValidationError as error:  # it fits the JSON schema and not the hints, as a date that is none
                found = error.errors(include_url=False)
                faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found]
                detail = f"Invalid arguments for {spec.name}: {'; '.join(faults[:5])}. Correct them and call again."
                raise ToolRetry(detail) from None
            return await function(**read, **dict.fromkeys(context, who))

        if isinstance(groups, str):
            _refuse(called, "needs groups that are a list of names")
        audience = Audience(groups=frozenset(groups)) if groups else None
        setattr(function, _MADE, Tool(spec, with_call_id(run, idempotency_arg), audience=audience))
        return function

    return decorate


def native_tools(given: Iterable[object] = (), *, disabled: Collection[str] = ()) -> tuple[Tool, ...]:
    """Returns the given tools, and those of packages (`segue.tools`) not disabled. Raises AppError `tool_invalid`."""
    own = [_made(each, "tools") for each in given]
    installed = [_made(each, where) for each, where in _installed(tuple(sys.path))]
    enabled = (each for each in installed if each.spec.name not in disabled and not any(each is one for one in own))
    return (*own, *enabled)


def _made(each: object, where: str) -> Tool:
    made = getattr(each, _MADE, each)
    if not isinstance(made, Tool):
        raise app_error("no_tool", each=each, where=where)
    return made


@lru_cache(maxsize=4)
def _installed(_: tuple[str, ...]) -> tuple[tuple[object, str], ...]:
    """Returns the objects behind the entry points of the packages on this path, each with its origin; reads it once."""
    found: list[tuple[object, str]] = []
    for entry in entry_points(group=ENTRY_POINTS):
        where = f"the entry point {entry.name} = {entry.value} of {ENTRY_POINTS}"
        try:
            loaded = entry.load()
        except (ImportError, AttributeError) as error:
            raise app_error("entry_point_leads_nowhere", where=where, why=error) from error
        except TypeError as error:  # of `@tool`
            raise app_error("entry_point_unusable", where=where, why=error) from error
        found += [(each, where) for each in (loaded if isinstance(loaded, list | tuple) else [loaded])]
    return tuple(found)


class _WithoutTitles(GenerateJsonSchema):
    """A field's title repeats its name, in every request to the model."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 (the signature is pydantic's)
        return False


def _description(function: Callable[..., object], name: str, effect: Effect) -> str:
    if effect not in get_args(Effect):
        _refuse(name, f"needs an effect that is one of {', '.join(get_args(Effect))}")
    if not TOOL_NAME.fullmatch(name):
        _refuse(name, "needs a name of up to 64 letters, digits, _ and -: give one with name=…")
    if not (text := inspect.getdoc(function)):
        _refuse(name, "needs a docstring: the model reads there what the tool is for")
    return text


def _arguments(function: Callable[..., object], name: str) -> tuple[TypeAdapter[dict[str, Any]], list[str]]:
    """Returns a reader of the model's arguments, and the names of the parameters that are given the context."""
    if not inspect.iscoroutinefunction(function):
        _refuse(name, "has to be `async def`. Call what blocks with asyncio.to_thread, or all turns wait for it")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        _refuse(name, f"has a type hint that is not known where the function is defined: {error}")
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _BY_NAME:
            _refuse(name, f"takes {parameter}: the model gives arguments by name, so each needs one of its own")
        if parameter.name not in hints:
            _refuse(name, f"needs a type hint for {parameter.name}: the model is told there what to give")
        if hints[parameter.name] is not ToolContext:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    def arguments(**given: Any) -> dict[str, Any]:
        return given

    vars(arguments)["__signature__"] = inspect.Signature(parameters)
    arguments.__annotations__ = {each.name: each.annotation for each in parameters}
    try:
        reader = TypeAdapter[dict[str, Any]](cast("Any", arguments))
        reader.json_schema()
    except PydanticUserError as error:
        _refuse(name, f"has a type hint that cannot be written as JSON: {error.message}")
    return reader, [each for each, hint in hints.items() if hint is ToolContext]


def _refuse(name: str, why: str) -> NoReturn:
    raise TypeError(f"The tool {name} {why}.")
