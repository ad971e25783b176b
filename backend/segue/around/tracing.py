"""Spans by OpenTelemetry, if an endpoint is set; only then is the library imported, which is the extra `otel`. A span
has ids, names and counts, and what was said only if the operator asks for it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from segue import __version__
from segue.domain.errors import AppError
from segue.domain.telemetry import Attribute, OpenSpan, Span, current_traceparent, untraced
from segue.language.lexicon import load_toml
from segue.log import log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

_CONVENTIONS: Final[Mapping[str, Any]] = load_toml("tracing.toml", package="segue.around")
OPERATIONS: Final[Mapping[str, str]] = _CONVENTIONS["operations"]
NAMES: Final = {"request": "{method}"} | {name: f"{called} {{{name}}}" for name, called in OPERATIONS.items()}
HANDED_DOWN: Final[Sequence[str]] = _CONVENTIONS["handed_down"]


class _Traced(Span):
    def __init__(self, span: "OtelSpan", name: str, *, content: bool) -> None:
        context = span.get_span_context()
        self._span = span
        self._name = name
        self.content = content and span.is_recording()
        self.trace_id = f"{context.trace_id:032x}"
        self.traceparent = f"00-{self.trace_id}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set_attributes(self, **attributes: Attribute) -> None:
        self._span.set_attributes(_by_convention(attributes))
        if "route" in attributes:  # known only when the request has been answered
            self._span.update_name(f"{self._name} {attributes['route']}")

    def add_event(self, name: str, **attributes: Attribute) -> None:
        self._span.add_event(name, _by_convention(attributes))

    def fail(self, reason: str) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 (of the extra `otel`)

        self._span.set_status(StatusCode.ERROR, reason)
        self._span.set_attribute("error.type", reason)


def _by_convention(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    known = _CONVENTIONS["attributes"]
    return {name if "." in name else known.get(name, f"segue.{name}"): value for name, value in attributes.items()}


def _opens_spans(tracer: "Tracer", *, content: bool) -> OpenSpan:
    from opentelemetry.trace import SpanKind, get_current_span  # noqa: PLC0415 (the same)
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 (of the extra `otel`)

    propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(name: str, *, parent: str | None = None, **attributes: Attribute) -> Iterator[Span]:
        """A failed span has the error's code or type, not its text, which may be the user's."""
        above = propagator.extract({"traceparent": parent}) if parent else None
        known = getattr(get_current_span(), "attributes", None) or {}
        named = {key: known[key] for key in HANDED_DOWN if key in known} | _by_convention(attributes)
        if name in OPERATIONS:
            named["gen_ai.operation.name"] = OPERATIONS[name]
        shown, kind = NAMES.get(name, name).format(**attributes), _CONVENTIONS["kinds"].get(name, "INTERNAL")
        with tracer.start_as_current_span(
            shown, above, SpanKind[kind], named, record_exception=False, set_status_on_exception=False
        ) as opened:
            traced = _Traced(opened, shown, content=content)
            above_it = current_traceparent.set(traced.traceparent)
            try:
                yield traced
            except BaseException as error:
                traced.fail(error.code if isinstance(error, AppError) else type(error).__name__)
                raise
            finally:
                current_traceparent.reset(above_it)

    return span


@asynccontextmanager
async def tracing(endpoint: str | None, *, content: bool = False) -> AsyncIterator[OpenSpan]:
    """Sends spans to `endpoint` (OTLP over HTTP) during the block, and the rest at its end."""
    if endpoint is None:
        yield untraced
        return
    try:
        provider = _provider(endpoint)
    except ImportError:
        log.warning("tracing_off", reason="OTEL_EXPORTER_OTLP_ENDPOINT is set, but the extra `otel` is not installed")
        yield untraced
        return
    try:
        yield _opens_spans(provider.get_tracer("segue", __version__), content=content)
    finally:
        await asyncio.to_thread(provider.shutdown)


def _provider(endpoint: str) -> "TracerProvider":
    """The library reads its own environment variables for everything but the endpoint. The provider is not made the
    process-wide one: it ends with the lifespan, and two apps in one process must not share it.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 (see above)
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 (the same)
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 (the same)
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 (the same)

    name = os.environ.get("OTEL_SERVICE_NAME", "segue")
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=3.0)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
