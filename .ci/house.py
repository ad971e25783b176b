"""The numbers of the house, beside those of another checkout: `make house [AGAINST=path]`.

What a message passes is run, on an offline model and stores of its own; of another checkout only its files are read.
"""

import argparse
import ast
import asyncio
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import structlog

from segue.around.embedded.servers import embedded_servers
from tests.support.message_way import modules
from tests.support.traced_messages import ways_of_messages

ROOT = Path(__file__).resolve().parents[1]


class House:
    """The files of a checkout's package, read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "backend" / "segue"
        files = sorted(self.package.rglob("*.py"))
        self.texts = {path.relative_to(self.package): path.read_text("utf-8") for path in files}
        self.modules = {path: ast.parse(text) for path, text in self.texts.items()}

    def numbers(self) -> dict[str, str]:
        sizes = {path: text.count("\n") for path, text in self.texts.items()}
        lines = sum(sizes.values())
        largest = max(sizes, key=lambda path: sizes[path])
        pages = [*self.root.glob("*.md"), *(self.root / "docs").rglob("*.md")]
        importers = self._importers()
        return {
            "files": f"{len(sizes)}",
            "lines": f"{lines:,}",
            "lines of a file": f"{lines / len(sizes):.0f}, at most {sizes[largest]} ({largest})",
            "rooms": f"{len(list(self.package.glob('*/__init__.py')))}",
            "folders": f"{sum(path.stem == '__init__' for path in sizes)}",
            "public types whose name recurs": _recurring(name for path in sizes for name in self._types(path)),
            "file stems that recur": _recurring(path.stem for path in sizes if path.stem != "__init__"),
            "import lines": f"{100 * sum(map(_import_lines, self.modules.values())) / lines:.1f} %",
            "modules with one importer": f"{sum(count == 1 for count in importers.values())} of {len(importers)}",
            "lines of tests": f"{_lines((self.root / 'tests').rglob('*.py')):,}",
            "lines of docs": f"{_lines(pages):,}",
        }

    def _types(self, path: Path) -> Iterator[str]:
        """The public classes of a file, and its aliases and type variables."""
        for node in self.modules[path].body:
            if isinstance(node, ast.ClassDef):
                yield from [node.name] * (not node.name.startswith("_"))
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
                    yield target.id

    def _importers(self) -> Counter[str]:
        """How many files import each module that is imported."""
        known = {".".join(("segue", *path.with_suffix("").parts)) for path in self.modules}
        found: Counter[str] = Counter()
        for module in self.modules.values():
            names = set[str]()
            for node in ast.walk(module):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
                elif isinstance(node, ast.Import):
                    names |= {each.name for each in node.names}
            found.update(names & known)
        return found


def _lines(files: Iterable[Path]) -> int:
    return sum(file.read_text("utf-8").count("\n") for file in files)


def _recurring(names: Iterator[str]) -> str:
    found = {name: times for name, times in Counter(names).items() if times > 1}
    return f"{len(found)}" + (f" ({', '.join(sorted(found))})" if found else "")


def _import_lines(module: ast.Module) -> int:
    nodes = (node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes)


def _passed() -> dict[str, str]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder, embedded_servers(Path(folder) / "servers", fast=True) as urls:
        ways = asyncio.run(ways_of_messages(urls.database_url, urls.redis_url, Path(folder)))
    return {f"passed by {what}": f"{len(modules(way))} modules, {len(way)} functions" for what, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("against", nargs="?", type=Path, help="another checkout")
    against = parser.parse_args().against
    here = House(ROOT).numbers() | _passed()
    there = House(against.resolve()).numbers() if against else {}
    for name, number in here.items():
        print(f"{name:32} {number}" + (f"  (there: {there[name]})" if name in there else ""))


if __name__ == "__main__":
    main()
