"""Images and files in results: what is shown in their place, and what `?part=` gives, after a restart too."""

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from segue.config import Settings
from segue.tools.normalize import clean, described
from tests.support.provider import Provider, calls, says
from tests.support.results import last_result, loaded, problem, ran, use_toolbox
from tests.support.service import Client, running
from tests.support.stores import looking_into
from tests.support.toolbox import NOTE, PIXEL

NOISE = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(94))[:3000]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + NOISE).decode()
PDF = base64.b64encode(b"%PDF-1.7" + NOISE).decode()


def about(number: int, media_type: str, size_bytes: int) -> dict[str, Any]:
    return {"part": number, "media_type": media_type, "size_bytes": size_bytes}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    use_toolbox(settings)
    return settings


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    async with running(settings) as served:
        yield served


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"chart": PNG}, {"chart": about(0, "image/png", 3008)}),
        ([{"a": [PNG]}, PDF], [{"a": [about(0, "image/png", 3008)]}, about(1, "application/pdf", 3008)]),
        (base64.b64encode(NOISE).decode(), about(0, "application/octet-stream", 3000)),
        (base64.urlsafe_b64encode(NOISE[:2999]).decode().rstrip("="), about(0, "application/octet-stream", 2999)),
        (
            {"encoding": "base64", "content": base64.encodebytes(b"def main():\n" * 40).decode(), "name": "a.py"},
            {"encoding": "base64", "name": "a.py", **about(0, "text/plain", 480)},
        ),
        ({"mimeType": "image/png", "data": PIXEL}, {"mimeType": "image/png", "part": 0, "size_bytes": 70}),
        (
            {
                "mimeType": "image/png",
                "id": "1Zdp9aKfQx7LmN2bVc4RtYu8WsE6HjG3",
                "md5": "9e107d9d372bb6826bd81d3542a419d6",
            },
            None,
        ),
        (f"![x](data:image/png;base64,{PNG}) end", "![x]([part 0: image/png, 3008 bytes]) end"),
        ({"src": f"data:image/png;name=a;base64,{PNG}"}, {"src": about(0, "image/png", 3008)}),
        ("data:image/svg+xml,%3Csvg%20xmlns%3D%22x%22%2F%3E", about(0, "image/svg+xml", 16)),
        ("data: a word, and more of it that is no address", None),
        ("x" * 10_000, None),
        ("0123456789abcdef" * 40, None),
        ("CamelCaseWordsThatGoOnAndOn" * 20, None),
        ({"rows": list(range(100)), "text": "plain " * 100}, None),
    ],
)
def test_binary_content_is_described_wherever_it_stands_and_nothing_else_is(value: Any, shown: Any) -> None:
    found, parts = described(value)
    if shown is None:
        assert (found, parts) == (value, ())
        assert found is value
    else:
        assert found == shown
        assert PNG[:100] not in orjson.dumps(found).decode()


LARGE = st.binary(min_size=100, max_size=300)


@examples(max_examples=20)
@given(
    LARGE,
    st.recursive(st.text() | LARGE | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
)
def test_every_value_is_described_and_its_parts_can_be_loaded(it: bytes, beside: Any) -> None:
    shown, parts = described(clean([it, beside]))
    orjson.dumps(shown)
    assert parts[0].content() == it
    assert all(len(part.content()) == part.size_bytes for part in parts)


async def test_images_and_files_are_shown_as_type_and_size_and_served_whole_after_a_restart(
    settings: Settings, provider: Provider
) -> None:
    async with running(settings) as client:
        session, other = await client.new_session(), await client.new_session()
        photo, echo = await ran(
            client, provider, session, ("photo", {"of": "Rossi"}), ("echo", {"deep": [{"it": PDF}]})
        )
    async with running(settings) as client:
        assert photo["metadata"]["summary"] == "Photo: Rossi — 3 items: a photo, image/png, file:///note.bin"
        for call, parts, hidden in (
            (photo, [("image/png", base64.b64decode(PIXEL)), ("application/octet-stream", NOTE)], PIXEL),
            (echo, [("application/pdf", base64.b64decode(PDF))], PDF[:100]),
        ):
            whole = await loaded(client, session, call)
            assert all(str(len(it)) in str(whole["result"]) for _, it in parts)
            assert hidden not in str(whole | {"args": None})
            assert hidden not in str(provider.messages(role="tool"))
            path = f"/sessions/{session}/tool-results/{call['tool_call_id']}"
            for number, (kind, it) in enumerate(parts):
                served = await client.http.get(path, params={"part": number})
                assert (served.status_code, served.content, served.headers["content-type"]) == (200, it, kind)
                assert served.headers["x-content-type-options"] == "nosniff"
                assert served.headers["content-disposition"].startswith("attachment;")
            missing = await problem(client, session, call["tool_call_id"], part=len(parts))
            assert missing[:2] == (404, "tool_result_part_not_found")
            assert (await problem(client, other, call["tool_call_id"], part=0))[0] == 404
        async with looking_into(settings) as stores:
            await stores.database.execute("UPDATE tool_results SET expires_at = now() - interval '1 s'")
        assert (await problem(client, session, photo["tool_call_id"], part=0))[:2] == (410, "tool_result_expired")
        await client.http.delete(f"/sessions/{session}")
        assert (await problem(client, session, photo["tool_call_id"], part=0))[0] == 404


async def test_a_text_file_in_a_result_can_be_read_by_the_model_and_an_image_of_an_earlier_turn_cannot(
    client: Client, provider: Provider
) -> None:
    session = await client.new_session()
    code = base64.b64encode(b"def main():\n" * 300).decode()
    made = await ran(
        client, provider, session, ("echo", {"encoding": "base64", "content": code}), ("photo", {"of": "x"})
    )
    for call, told in zip(
        made, ({"result": "def main():\n", "result_total": 3600, "next_offset": 12}, None), strict=True
    ):
        provider.will(
            calls(("get_tool_result", {"tool_call_id": call["tool_call_id"], "part": 0, "limit": 12})), says("ok")
        )
        await client.chat(session, "What is in it?")
        result = last_result(provider.requests[-1])
        if told:
            assert result.items() >= told.items()
        else:
            assert result["error"] == "Part 0 is image/png, which cannot be shown as text."


async def test_a_result_that_is_too_large_is_kept_without_its_files(settings: Settings, provider: Provider) -> None:
    async with running(settings.model_copy(update={"tool_result_max_bytes": 3000})) as client:
        session = await client.new_session()
        [call] = await ran(client, provider, session, ("echo", {"name": "a.pdf", "file": PDF}))
        whole = await loaded(client, session, call)
    assert whole["result"] == {
        "name": "a.pdf",
        "file": {"kept": False, "media_type": "application/pdf", "size_bytes": 3008},
    }
    assert call["metadata"]["summary"].startswith("cut at the size limit: ")


async def test_a_text_in_an_object_is_summed_up_shown_and_paged_as_a_text(client: Client, provider: Provider) -> None:
    session = await client.new_session()
    [call] = await ran(client, provider, session, ("read_file", {"path": "src/main.py"}))
    assert call["metadata"]["summary"] == "Read file: src/main.py (342 lines)"
    assert call["metadata"]["truncated_preview"].startswith("import os\nimport os\n")
    page = await loaded(client, session, call, offset=10, limit=9)
    assert (page["result"], page["result_total"], page["next_offset"]) == ("import os", 3420, 19)
    assert (await loaded(client, session, call, path="path"))["result"] == "src/main.py"
