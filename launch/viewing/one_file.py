"""Writes the page of a run as one file, which needs no server.

Each trajectory is a block of its own, compressed, which the page unpacks when
it is looked at: a page of thousands opens as fast as its list.
"""

import base64
import gzip
import json
import os
import pathlib
from typing import Any

from launch.viewing.server import Viewer, page_file

_POLICY = (
  '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
  "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
  "base-uri 'none'; form-action 'none'\">"
)


def write_file(viewer: Viewer, path: pathlib.Path) -> int:
  """Writes the page in one step; returns its size in bytes."""
  listing = viewer.listing()
  page = page_file("viewer.html")
  style = page_file("viewer.css")
  script = page_file("viewer.js")
  head, _, tail = page.partition("<!-- data -->")
  head = head.replace(
    '<link rel="stylesheet" href="viewer.css">',
    f"{_POLICY}\n<style>\n{style}</style>",
  )
  tail = tail.replace(
    '<script src="viewer.js"></script>', f"<script>\n{script}</script>"
  )
  partial = path.with_name(path.name + ".partial")
  with partial.open("w", encoding="utf-8") as file:
    file.write(head)
    file.write(_block("trajectories", listing))
    file.write(_block("now", viewer.now()))
    file.write(_block("curves", viewer.curves()))
    for listed in listing["trajectories"]:
      id = listed["id"]
      file.write(_block(f"trajectories/{id}", viewer.trajectory(id)))
    file.write(tail)
    file.flush()
    os.fsync(file.fileno())
  partial.replace(path)
  return path.stat().st_size


def _block(name: str, value: Any) -> str:
  """Returns an element with the JSON in base64, which ends no element."""
  packed = gzip.compress(json.dumps(value).encode(), 6, mtime=0)
  text = base64.b64encode(packed).decode()
  return f'<script type="text/plain" data-api="{name}">{text}</script>\n'
