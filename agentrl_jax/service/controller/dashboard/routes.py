"""Serves the files of the page, and keeps pages of others from calling."""

import pathlib
from urllib.parse import urlsplit

from aiohttp import web

from agentrl_jax.service.controller.access import is_loopback
from agentrl_jax.service.controller.registry import Refused

_FILES = {
  "/": ("dashboard.html", "text/html"),
  "/dashboard.css": ("dashboard.css", "text/css"),
  "/dashboard.js": ("dashboard.js", "text/javascript"),
}
_PAGE = pathlib.Path(__file__).parent / "page"
# The page's own files, and nothing else: a worker or a task whose name is
# markup cannot load or run anything.
_HEADERS = {
  "Content-Security-Policy": (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
  ),
  "X-Content-Type-Options": "nosniff",
  "Referrer-Policy": "no-referrer",
  "Cache-Control": "no-cache",
}


class ForeignPage(Refused):
  """A browser sent this, on behalf of a page that is not the controller's."""


def add_page(router: web.UrlDispatcher) -> None:
  """Adds the files; they have no secret, so they need no token."""
  for path in _FILES:
    router.add_get(path, _file)


async def _file(request: web.Request) -> web.Response:
  name, kind = _FILES[request.path]
  text = (_PAGE / name).read_text("utf-8")
  return web.Response(text=text, content_type=kind, headers=_HEADERS)


def require_our_page(request: web.Request, *, is_open: bool) -> None:
  """Raises `ForeignPage` for a browser that shows another page.

  A browser on the operator's machine reaches a controller that listens there,
  and sends what any page tells it to. Such a request names the page's origin,
  which must be this server. Without tokens (`is_open`) the server must be named
  by an address or as localhost, too: a page elsewhere could make its own name
  point to this machine. Programs send neither header, and are not affected.
  """
  origin = request.headers.get("Origin")
  site = request.headers.get("Sec-Fetch-Site")
  if origin is None and site is None:
    return
  is_foreign = origin is not None and urlsplit(origin).netloc != request.host
  is_renamed = is_open and not _is_address(request.url.host or "")
  if is_foreign or is_renamed or site not in (None, "none", "same-origin"):
    raise ForeignPage(
      f"a page of {origin or site!r:.200} may not call this controller at "
      f"{request.host!r:.200}: open its own page, by its address"
    )


def _is_address(host: str) -> bool:
  return is_loopback(host) or host.replace(".", "").isdecimal() or ":" in host
