"""What the suite says of a test that fails."""

import ast
import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def parsing_collector() -> Iterator[None]:
    """The collector parses source when it runs, as a finalizer does that logs a traceback; and it runs very often."""

    def parse(*_: object) -> None:
        ast.parse("a + b")

    often, usual = 10, gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(often)
    yield
    gc.set_threshold(*usual)
    gc.callbacks.remove(parse)


@pytest.mark.usefixtures("parsing_collector")
def test_a_failure_is_shown_though_a_finalizer_would_parse_source_meanwhile(request: pytest.FixtureRequest) -> None:
    def fails() -> None:
        raise ValueError("this is why")

    call = pytest.CallInfo.from_call(fails, "setup")
    report = request.config.hook.pytest_runtest_makereport(item=request.node, call=call)
    assert "this is why" in report.longreprtext
