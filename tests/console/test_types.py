"""The console's types against the API as it is: a field that is gone, or a language that lacks a text, is an error."""

import pytest

from tests.support.commands import ROOT
from tests.support.node import needs_node, node

CONSOLE = ROOT / "console"
TYPES = CONSOLE / "src" / "api-types.d.ts"


@pytest.mark.sweep
@needs_node
@pytest.mark.skipif(not (CONSOLE / "node_modules").exists(), reason="the console is not built: python console/build.py")
async def test_the_console_fits_the_description_of_the_api() -> None:
    options = ("--default-non-nullable", "false", "--output", TYPES)
    await node("node_modules/openapi-typescript/bin/cli.js", ROOT / "docs" / "openapi.json", *options)
    await node("node_modules/typescript/bin/tsc", "--noEmit", "--project", CONSOLE)
