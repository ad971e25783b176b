"""Says what a field means, beside it: `Annotated[str, doc("…")]` is the field's description in openapi.json."""

from typing import Any

from pydantic import Field


def doc(text: str) -> Any:
    return Field(description=text)
