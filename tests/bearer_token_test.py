"""Tokens are read from files and variables, and compared as a whole."""

import pathlib
import tempfile
from unittest import mock

from absl.testing import parameterized

from agentrl_jax.bearer_token import bearer, read_secret, read_token, sends
from agentrl_jax.errors import ConfigError

SECRET = "0123456789abcdef"


class BearerTokenTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    self.path /= "token"

  def test_reads_the_first_line(self):
    self.path.write_text(f" {SECRET} \r\nof the pod in zone b\n")
    self.assertEqual(read_token(str(self.path), "key="), SECRET)
    self.assertEqual(read_secret(str(self.path), "key="), SECRET)
    self.assertEqual(read_secret("", "key="), "")

  def test_reads_a_variable(self):
    with mock.patch.dict("os.environ", TOKEN_OF_A_TEST=f"{SECRET}\n"):
      self.assertEqual(read_secret("env:TOKEN_OF_A_TEST", "key="), SECRET)
    with self.assertRaisesRegex(ConfigError, "key=env:TOKEN_OF_A_TEST cannot"):
      read_secret("env:TOKEN_OF_A_TEST", "key=")

  @parameterized.parameters(b"", b"\nsecret\n", b"  \n", b"s\xc3\xa9", b"\xff")
  def test_refuses_what_no_header_carries(self, content):
    self.path.write_bytes(content)
    with self.assertRaisesRegex(ConfigError, "first line of key=/.*openssl"):
      read_token(str(self.path), "key=")

  def test_a_server_refuses_a_short_token(self):
    self.path.write_text(SECRET[1:])
    self.assertEqual(read_token(str(self.path), "key="), SECRET[1:])
    with self.assertRaisesRegex(ConfigError, "has 15 characters; at least 16"):
      read_secret(str(self.path), "key=")

  def test_sends_what_it_compares(self):
    self.assertTrue(sends(bearer(SECRET)["Authorization"], SECRET))
    self.assertTrue(sends(f"bearer  {SECRET} ", SECRET))
    self.assertEqual(bearer(""), {})

  @parameterized.parameters(
    "",
    SECRET,
    "Bearer",
    "Bearer ",
    f"Basic {SECRET}",
    f"Bearer {SECRET[:-1]}",
    f"Bearer {SECRET}0",
    f"Bearer {SECRET.upper()}",
    "Bearer \udcff\udcfe",
  )
  def test_no_other_header_has_it(self, header):
    self.assertFalse(sends(header, SECRET))
