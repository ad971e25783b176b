"""The pages at `/` and `/docs`: who may load them, how long they are kept, and what they may do."""

import re
from pathlib import Path

import pytest

from segue.api import pages
from segue.config import Settings
from tests.support.pages import needs_pages
from tests.support.service import Client, running

PAGES = ("/", "/docs")


def assets(html: str) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]+)"', html)


@needs_pages
async def test_pages_and_what_they_load_need_no_key_and_come_from_here(settings: Settings) -> None:
    async with running(settings.model_copy(update={"auth": "api_key"})) as client:
        for path in PAGES:
            page = await client.http.get(path)
            policy = page.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "script-src" not in policy
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|https?:", page.text)
            assert len(set(assets(page.text))) == 4
            for asset in assets(page.text):
                assert (await client.http.get(f"/{asset}")).status_code == 200
        assert (await client.http.get("/assets/nothing.js")).status_code == 404
        assert (await client.http.get("/assets/index.html")).status_code == 404
        assert (await client.http.get("/sessions")).status_code == 401


@needs_pages
async def test_an_asset_is_kept_for_ever_and_a_page_is_asked_for_again(client: Client) -> None:
    page = await client.http.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = await client.http.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for asset in assets(page.text):
        assert re.search(r"-[A-Z0-9]{8}\.\w+$", asset)
        kept = await client.http.get(f"/{asset}")
        assert "immutable" in kept.headers["cache-control"]
        assert kept.headers["content-encoding"] == "gzip"
        plain = await client.http.get(f"/{asset}", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == kept.content


@needs_pages
async def test_head_answers_as_get_does_and_without_a_body(client: Client) -> None:
    for path in (*PAGES, "/" + assets((await client.http.get("/")).text)[0]):
        got, head = await client.http.get(path), await client.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-length", "content-type", "etag", "cache-control"):
            assert head.headers[name] == got.headers[name]


async def test_the_console_can_be_turned_off_and_the_docs_stay(settings: Settings) -> None:
    async with running(settings.model_copy(update={"console": False})) as client:
        assert (await client.http.get("/")).status_code == 404
        assert (await client.http.get("/docs")).status_code == 200


async def test_where_it_could_not_be_built_it_says_how(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    for path in PAGES:
        assert "python console/build.py" in (await client.http.get(path)).text
