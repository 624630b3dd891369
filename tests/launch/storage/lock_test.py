"""Locks on folders: who is let in, and that a look keeps nobody out."""

import contextlib
import fcntl
import os
import pathlib
import tempfile
import threading

from absl.testing import absltest

from agentrl_jax.errors import NotWritten, RunInUse
from launch.storage.lock import held, is_held


class LockTest(absltest.TestCase):
  def test_looking_keeps_nobody_out(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "lock"
      path.touch()
      is_over = threading.Event()

      def look():
        while not is_over.is_set():
          is_held(path)

      looking = threading.Thread(target=look)
      looking.start()
      let_in = 0
      try:
        for _ in range(200):
          with held(path, "in use"):  # raises if a look holds it
            let_in += 1
      finally:
        is_over.set()
        looking.join()
      self.assertEqual(let_in, 200)

  def test_one_that_is_held_keeps_others_out(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder) / "lock"
      self.assertFalse(is_held(path))
      with held(path, "in use"):
        self.assertTrue(is_held(path))
        with self.assertRaisesRegex(RunInUse, "in use"), held(path, "in use"):
          self.fail("it was let in")
      self.assertFalse(is_held(path))

  def test_a_look_needs_no_more_than_to_read(self):
    """As at the run of another user."""
    with (
      tempfile.TemporaryDirectory() as folder,
      contextlib.chdir(folder),  # folders around it may be the user's alone
      contextlib.ExitStack() as after,
    ):
      path = pathlib.Path("lock")
      path.touch(0o444)
      pathlib.Path(folder).chmod(0o755)
      if not os.geteuid():  # whom no mode of a file keeps out
        after.callback(os.seteuid, 0)
        os.seteuid(65534)
      self.assertFalse(is_held(path))
      with path.open() as reader:  # another look
        fcntl.flock(reader, fcntl.LOCK_SH)
        self.assertFalse(is_held(path))
        fcntl.flock(reader, fcntl.LOCK_EX)
        self.assertTrue(is_held(path))

  def test_one_that_cannot_be_written_is_a_sentence(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder)
      with self.assertRaises(NotWritten), held(path, "in use"):
        self.fail("a folder was locked")
