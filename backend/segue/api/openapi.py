"""The OpenAPI document: what FastAPI makes of the routes, with names, summaries and problems to read.

The descriptions of parameters and properties stand where these are declared.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from segue.api.doors import openai_errors
from segue.api.doors.openai_errors import OpenAIError, OpenAIErrorBody
from segue.api.problem_codes import codes_of, table
from segue.api.problems import PROBLEM_TYPE, Problem

_SCHEMAS = "#/components/schemas/"
_SENTENCE = re.compile(r"(.+?)\.(?:\s+(.+))?", re.DOTALL)


class DescribedApp(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            for route in self.routes:
                if isinstance(route, APIRoute):
                    route.operation_id = route.name
            self.openapi_schema = _finished(super().openapi())
        return self.openapi_schema


def _finished(document: dict[str, Any]) -> dict[str, Any]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _describe(path, method, operation)
    schemas = document["components"]["schemas"]
    schemas["Problem"] = Problem.model_json_schema()
    schemas["OpenAIErrorBody"] = OpenAIErrorBody.model_json_schema()
    schemas["OpenAIError"] = OpenAIError.model_json_schema(ref_template=f"{_SCHEMAS}{{model}}")
    del schemas["OpenAIError"]["$defs"]
    pages = {name: _page_name(schema) for name, schema in schemas.items() if name.startswith("Page_")}
    renamed = re.sub(r"Page_\w+", lambda found: pages.get(found[0], found[0]), json.dumps(document))
    finished: dict[str, Any] = json.loads(renamed)
    for name, schema in finished["components"]["schemas"].items():
        schema["title"] = name
    return finished


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    """The first sentence of an endpoint's docstring is the summary, the others are the description."""
    if (said := _SENTENCE.fullmatch(operation.pop("description", ""))) is not None:
        operation["summary"] = " ".join(said[1].split())
        operation |= {"description": said[2]} if said[2] else {}
    codes = codes_of(method, operation)
    kind, media_type, schema = "A problem (RFC 9457).", PROBLEM_TYPE, "Problem"
    if path.startswith(openai_errors.PATHS):
        kind, media_type, schema = "An error as OpenAI describes it.", "application/json", "OpenAIError"
    operation["responses"]["default"] = {
        "description": f"{kind}\n\n{table(codes)}",
        "content": {media_type: {"schema": {"$ref": f"{_SCHEMAS}{schema}"}}},
        "x-problem-codes": codes,
    }
    for response in operation["responses"].values():
        for content in response.get("content", {}).values():
            content.get("schema", {}).pop("title", None)  # FastAPI's, made of the path


def _page_name(schema: Mapping[str, Any]) -> str:
    """`SessionPage` for a page of sessions, also of those that cannot be read."""
    item = schema["properties"]["items"]["items"]
    first: str = (item.get("anyOf") or [item])[0]["$ref"]
    return f"{first.removeprefix(_SCHEMAS)}Page"
