"""The process of a cell: what it is given beside its arguments."""

import os
import pathlib
import stat
import tempfile
from unittest import mock

from absl.testing import absltest

from launch.sweeps import processes
from launch.sweeps.processes import LARGE_PAGES, CellProcess


class EnvironmentTest(absltest.TestCase):
  def tunables(self) -> str:
    """Starts a cell whose program prints one variable; returns what it said."""
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    program = folder / "python"
    program.write_text('#!/bin/sh\nprintf %s "$GLIBC_TUNABLES"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    log = folder / "logs" / "cell.log"
    with mock.patch.object(processes.sys, "executable", str(program)):
      cell = CellProcess.start([], log, [min(os.sched_getaffinity(0))])
      cell.process.wait(60)
    return log.read_text()

  def test_memory_is_of_large_pages_unless_the_user_says_otherwise(self):
    with mock.patch.dict(os.environ):
      os.environ.pop("GLIBC_TUNABLES", None)
      self.assertEqual(self.tunables(), LARGE_PAGES)
      os.environ["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=7"
      self.assertEqual(self.tunables(), "glibc.malloc.tcache_count=7")


if __name__ == "__main__":
  absltest.main()
