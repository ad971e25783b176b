"""How often a service looks for garbage: seldom, since a look halts it, and often enough that memory does not grow."""

from pathlib import Path

import httpx2
import pytest

from tests.support.metrics import Scrape
from tests.support.service import Process

LISTS = 5_000  # in metadata of less than 16 kB
BODIES = 48


def collections(http: httpx2.Client) -> list[float]:
    scrape = Scrape(http.get("/metrics").text)
    return [scrape("python_gc_collections_total", generation=each) for each in range(3)]


@pytest.mark.sweep
def test_a_service_looks_for_garbage_once_in_five_thousand_objects(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"mcpServers": {}}')
    service = Process({"DATA_DIR": str(tmp_path / "data"), "MCP_CONFIG": str(tmp_path / "none.json")})
    url = service.start()
    try:
        with httpx2.Client(base_url=url, timeout=30) as http:
            before = collections(http)
            for _ in range(BODIES):
                assert http.post("/sessions", json={"metadata": {"lists": [[]] * LISTS}}).status_code == 201
            young, middle, _ = (after - earlier for earlier, after in zip(before, collections(http), strict=True))
    finally:
        service.stop()
    made = LISTS * BODIES
    assert 0.6 < young * 5_000 / made < 1.2
    assert 4 < young / middle < 9
