"""Whoever watches the service by docs/ watches what it exports: the rules, the dashboard and the tables."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.commands import ROOT
from tests.support.metrics import scraped
from tests.support.service import Client

DOCS = ROOT / "docs"
TABLE = dict(
    re.findall(r"^\| `(segue_\w+?)(?:\{([\w,]+)\})?` \|", (DOCS / "operations.md").read_text("utf-8"), re.MULTILINE)
)
LABELS = {name: set(labels.split(",")) - {""} for name, labels in TABLE.items()}
FROM_PROMETHEUS = {"instance", "le"}


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
