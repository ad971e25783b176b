"""For types whose schema pydantic builds at their first use, not when a route is declared with them."""

from typing import Final

from pydantic import ConfigDict

# FastAPI has a schema built for each route that a type stands in: these took a tenth of the start.
BUILT_AT_FIRST_USE: Final = ConfigDict(defer_build=True)
