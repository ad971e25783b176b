"""Paths that were made to take long: they end, and nothing else waits for them."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import orjson
import psutil
import pytest

from segue.tools.paging import SMALL_CHARS, InvalidPath, PageSpec, at_path, page_of, passages_in
from tests.support import logs
from tests.support.patience import PATIENCE_S

NUMBERS = orjson.dumps(list(range(300_000))).decode()
WORDS = orjson.dumps([{"text": "x" * 1000}] * 3000).decode()
ROWS = orjson.dumps([{"id": row} for row in range(1000)]).decode()


async def children() -> list[psutil.Process]:
    """Returns the processes that evaluate paths for this one."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            found += [child] if "anyio.to_process" in " ".join(child.cmdline()) else []
    return found


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("content", "path"),
    [
        pytest.param(NUMBERS, "|".join(["[*]"] * 240), id="projections"),
        pytest.param(NUMBERS, "|".join(["sort(@)"] * 140), id="sorting", marks=pytest.mark.sweep),
        pytest.param(WORDS, "join(to_string(@), [*].text)", id="text", marks=pytest.mark.sweep),
        pytest.param(ROWS, "|".join(["[@,@][]"] * 60), id="doubling"),
        pytest.param(ROWS, "|".join(["[@,@]"] * 90), id="sharing", marks=pytest.mark.sweep),
    ],
)
async def test_a_path_that_takes_too_much_is_refused_at_its_deadline(content: str, path: str) -> None:
    with pytest.raises(InvalidPath, match=r"longer than 0.5 s|too much memory|over 40 MB") as refused:
        await page_of(content, PageSpec(path), is_json=True, deadline_s=0.5)
    assert (refused.value.status, refused.value.code) == (422, "invalid_path")


@pytest.mark.sweep
async def test_other_work_goes_on_while_a_path_is_evaluated() -> None:
    asked = asyncio.create_task(page_of(NUMBERS, PageSpec("|".join(["[*]"] * 240)), is_json=True, deadline_s=0.5))
    await asyncio.sleep(0)
    small = [await at_path(f'[{{"id": {row}}}]', "[0].id", is_json=True) for row in range(1000)]
    assert (small, asked.done()) == (list(range(1000)), False)
    with pytest.raises(InvalidPath):
        await asked


@pytest.mark.sweep
async def test_after_a_refusal_the_next_path_is_evaluated() -> None:
    with pytest.raises(InvalidPath):
        await page_of(NUMBERS, PageSpec("|".join(["[*]"] * 240)), is_json=True, deadline_s=0.1)
    assert (await page_of(NUMBERS, PageSpec("sum(@)"), is_json=True)).result == sum(range(300_000))


@pytest.mark.sweep
async def test_a_client_that_leaves_ends_the_evaluation() -> None:
    await page_of("[]", PageSpec("length(@)"), is_json=True)
    started = {child.pid: child.cpu_times().user for child in await children()}

    async def evaluating() -> list[psutil.Process]:
        return [child for child in await children() if child.cpu_times().user > started[child.pid]]

    asked = asyncio.create_task(page_of(NUMBERS, PageSpec("|".join(["[*]"] * 240)), is_json=True))
    working = await logs.until(evaluating)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert psutil.wait_procs(working, timeout=PATIENCE_S)[1] == []


@pytest.mark.sweep
async def test_a_process_that_evaluates_ends_with_the_one_it_works_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from segue.tools.paging import PageSpec, page_of\n"
        "async def last():\n"
        "    await page_of('[]', PageSpec('length(@)'), is_json=True)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(last())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    assert parent.stdout
    assert await parent.stdout.readline() == b"ready\n"
    [working] = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    assert psutil.wait_procs([working], timeout=PATIENCE_S)[1] == []


async def test_a_small_result_at_a_plain_path_needs_no_process() -> None:
    before = await children()
    content = orjson.dumps({"rows": [{"id": "x" * 40}] * 900}).decode()
    assert len(content) < SMALL_CHARS
    assert (await page_of(content, PageSpec("rows[*].id | [-1]"), is_json=True)).result == "x" * 40
    assert await children() == before


@pytest.mark.in_turns(1)
@pytest.mark.parametrize("path", ["rows[2:].id", "rows[?id > `1`].id", "sort_by(rows, &id)[2:].id"])
async def test_a_list_for_the_model_is_cut_to_whole_items_that_fit(path: str) -> None:
    content = orjson.dumps({"rows": [{"id": 10**9 + row} for row in range(1000)]}).decode()
    page = await page_of(content, PageSpec(path, limit=500, max_bytes=300, max_chars=8000), is_json=True)
    assert len(page.json) <= 300
    assert page.next_offset == len(page.result) > 10


async def test_a_page_of_a_text_is_found_by_its_number() -> None:
    text = "\n\n".join(f"[page {number}] As in note [77] on page {number} of 77." for number in range(1, 200))
    found = await passages_in(text, "[page 77]", is_json=False)
    assert found is not None
    assert found[0]["page"] == "[page 77]"
    assert "[page 77] As in" in found[0]["text"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("numero", "el número secreto"),
        ("احمد", "تقرير أحمد جاهز"),
        ("l’è", "dov'è l'edificio"),
        ("penali", "la penale è di 200 euro"),
        ("الميزانية", "ميزانية المشروع"),
        ("预算", "今年的预算是五千"),
    ],
)
async def test_a_passage_is_found_by_its_words_without_accents_and_in_another_form(query: str, said: str) -> None:
    text = f"{'x ' * 3000}{said}{' y' * 3000}"
    found = await passages_in(text, query, is_json=False)
    assert found is not None
    assert said in found[0]["text"]
    assert await passages_in("lorem ipsum dolor", query, is_json=False) == []
