"""What a service says at /metrics, read as Prometheus reads it."""

import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.service import Client


class Scrape:
    """The samples of one scrape, and the names of all there could be."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: Any) -> float:
        """The value of a sample; 0 where it has not been counted yet."""
        return self._samples.get((name, frozenset((key, str(value)) for key, value in labels.items())), 0)

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """The samples of a name by the value of their label."""
        return {dict(labels)[label]: value for (known, labels), value in self._samples.items() if known == name}

    def has(self, name: str) -> bool:
        return any(name == known for known, _ in self._samples)

    def labels(self) -> list[tuple[str, set[str]]]:
        """The name of each sample, and the names of its labels."""
        return [(name, {label for label, _ in labels}) for name, labels in self._samples]

    @property
    def names(self) -> set[str]:
        """Every name a query may use."""
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", self.text, re.MULTILINE))
        histograms = {
            f"{name}{end}"
            for name, kind in kinds.items()
            if kind == "histogram"
            for end in ("_bucket", "_sum", "_count")
        }
        return {name for name, kind in kinds.items() if kind != "histogram"} | histograms


async def scraped(client: Client) -> Scrape:
    response = await client.http.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(response.text)
