"""How types of the API are declared: `Annotated[str, doc("…")]` is a field's description in openapi.json."""

from typing import Any, Final

from pydantic import ConfigDict, Field

# For a large type, whose schema FastAPI has built for each route that it stands in: these took a tenth of the start.
BUILT_AT_FIRST_USE: Final = ConfigDict(defer_build=True)


def doc(text: str) -> Any:
    return Field(description=text)
