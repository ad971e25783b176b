"""Whoever watches the service by docs/ watches what it exports: the rules, the dashboard and the tables."""

import asyncio
import json
import operator
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]

from segue.api.metrics import Metrics, shared_metrics
from segue.domain.telemetry import WebhookOutcome
from tests.support.commands import ROOT
from tests.support.logs import until
from tests.support.metrics import scraped
from tests.support.service import Client

DOCS = ROOT / "docs"
TABLE = dict(
    metric
    for row in re.findall(r"^\| (`segue_.+?`) \|", (DOCS / "operations.md").read_text("utf-8"), re.MULTILINE)
    for metric in re.findall(r"`(segue_\w+?)(?:\{([\w,]+)\})?`", row)
)
LABELS = {name: set(labels.split(",")) - {""} for name, labels in TABLE.items()}
FROM_PROMETHEUS = {"instance", "le"}
PROGRAMS = [shutil.which("prometheus"), shutil.which("promtool")]


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
    ]


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in json.loads((DOCS / "dashboard.json").read_text("utf-8"))["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


async def test_every_metric_that_is_watched_is_exported_and_every_one_exported_is_explained(client: Client) -> None:
    scrape = await scraped(client)
    watched = set(chain.from_iterable(re.findall(r"\b(?:segue|process)_[a-z_]+", query) for query in queries()))
    assert watched <= scrape.names
    explained = {name for name in scrape.names if name.startswith("segue_") and family(name) in TABLE}
    assert {name for name in scrape.names if name.startswith("segue_")} == explained
    assert set(TABLE) == {family(name) for name in explained}
    assert all(labels - {"le"} == LABELS[family(name)] for name, labels in scrape.labels() if name.startswith("segue_"))


@pytest.mark.parametrize("query", list(queries()))
def test_a_query_is_balanced_and_asks_for_labels_that_its_metrics_have(query: str) -> None:
    for opening, closing in ("()", "[]", "{}"):
        assert query.count(opening) == query.count(closing)
    for name, selected in re.findall(r"(segue_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selected)) <= LABELS[family(name)]
    known = set().union(*(LABELS[family(name)] for name in re.findall(r"\bsegue_\w+", query)), FROM_PROMETHEUS)
    for grouped in re.findall(r"\bby \(([\w, ]+)\)", query):
        assert set(grouped.split(", ")) <= known


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    procedures = (DOCS / "operations.md").read_text("utf-8").partition("## When an alert fires")[2]
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["alert"] in procedures


def rule_of(alert: str) -> str:
    [asked] = (rule["expr"].strip() for rule in rules() if rule["alert"] == alert)
    return str(asked)


def test_that_no_api_is_scraped_is_told_by_what_no_worker_serves_and_every_api_does_without_its_stores() -> None:
    always = {family.name for family in shared_metrics(backlog=None, jobs=None, tools_failed=None, outbox=None)}
    assert rule_of("SegueNotScraped") in {f"absent({name})" for name in always}


def test_that_events_of_the_webhook_are_lost_is_told_however_they_are() -> None:
    [told] = re.findall(r'outcome=~"([^"]+)"', rule_of("SegueWebhookLate"))
    assert set(told.split("|")) == {*get_args(WebhookOutcome)} - {"delivered", "failed"}


def test_an_alert_that_one_event_is_enough_for_hears_of_the_first_one() -> None:
    text = Metrics().text().decode()
    for outcome in get_args(WebhookOutcome):  # a rate sees no step of a series that begins above 0
        assert f'segue_webhook_tries_total{{outcome="{outcome}"}} 0.0\n' in text


@pytest.mark.parametrize(("running", "places", "fires"), [(0, 0, False), (63, 64, False), (64, 64, True)])
def test_no_place_is_free_only_where_there_are_places(running: int, places: int, *, fires: bool) -> None:
    told = {"sum(segue_turns_running)": running, "sum(segue_turn_places)": places, "0": 0}
    value, *rest = re.split(r" (>=|>) ", rule_of("SegueNoPlaceFree"))
    # Comparisons from the left to the right, each of which keeps what is on its left.
    compared = zip(rest[::2], rest[1::2], strict=True)
    holds = {">=": operator.ge, ">": operator.gt}
    assert all(holds[sign](told[value], told[other]) for sign, other in compared) is fires


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Debian's, which scrapes `target` and evaluates our rules every second."""
    scrapes = {"job_name": "segue", "static_configs": [{"targets": [target]}]}
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "rule_files": [str(DOCS / "alerts.yml")], "scrape_configs": [scrapes]}
    (folder / "prometheus.yml").write_text(json.dumps(config))
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder,
        "web.listen-address": "127.0.0.1:0",
    }
    with (folder / "log").open("wb") as log:
        arguments = (f"--{name}={value}" for name, value in options.items())
        process = await asyncio.create_subprocess_exec("prometheus", *arguments, stderr=log)

    async def addresses() -> list[str]:
        return re.findall(r'msg="Listening on" address=(127\.0\.0\.1:\d+)', (folder / "log").read_text("utf-8"))

    try:
        [address] = await until(addresses)
        async with httpx2.AsyncClient(base_url=f"http://{address}/api/v1") as client:

            async def is_ready() -> bool:  # it listens before it has opened its store
                return (await client.get(f"http://{address}/-/ready")).is_success

            await until(is_ready)
            yield client
    finally:
        process.kill()
        await process.wait()


async def promtool(*arguments: str, given: bytes = b"") -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("promtool", *arguments, stdin=pipe, stdout=pipe, stderr=pipe)
    said = await process.communicate(given)
    assert process.returncode == 0, said


@pytest.mark.skipif(None in PROGRAMS, reason="Debian's package prometheus is not installed")
async def test_prometheus_itself_takes_what_is_exported_the_rules_and_every_query(
    client: Client, tmp_path: Path
) -> None:
    await promtool("check", "rules", str(DOCS / "alerts.yml"))
    await promtool("check", "metrics", given=(await scraped(client)).text.encode())
    async with prometheus(tmp_path, client.http.base_url.netloc.decode()) as asked:

        async def is_scraped() -> bool:
            up = (await asked.get("/query", params={"query": "segue_build_info == 1"})).json()
            rules = (await asked.get("/rules")).json()
            told = [rule["health"] for group in rules["data"]["groups"] for rule in group["rules"]]
            return bool(up["data"]["result"]) and set(told) == {"ok"}

        await until(is_scraped)
        for query in queries():
            answer = await asked.get("/query", params={"query": query.replace("$__rate_interval", "1m")})
            assert answer.json()["status"] == "success", answer.text
