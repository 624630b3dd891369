"""Writes the page of a run as one file, which needs no server."""

import os
import pathlib
from collections.abc import Iterator

from launch.reports.html import viewer_chunks
from launch.viewing.server import Viewer


def write_file(viewer: Viewer, path: pathlib.Path) -> int:
  """Writes the page in one step; returns its size in bytes."""
  partial = path.with_name(path.name + ".partial")
  with partial.open("w", encoding="utf-8") as file:
    file.writelines(viewer_chunks(_answers(viewer)))
    file.flush()
    os.fsync(file.fileno())
  partial.replace(path)
  return path.stat().st_size


def _answers(viewer: Viewer) -> Iterator[tuple[str, object]]:
  """Yields each question that the page may ask, and its answer."""
  listing = viewer.listing()
  yield "trajectories", listing
  yield "now", viewer.now()
  yield "curves", viewer.curves()
  for listed in listing.trajectories:
    yield f"trajectories/{listed.id}", viewer.trajectory(listed.id)
