"""Roles, tokens, and the hosts that a controller may call."""

import ipaddress
import unittest
from unittest import mock

from absl.testing import parameterized

from agentrl_jax.errors import ConfigError
from agentrl_jax.service.controller import access
from agentrl_jax.service.controller.access import (
  Access,
  Role,
  WorkerHosts,
  is_loopback,
)
from agentrl_jax.service.controller.main import ServiceConfig
from agentrl_jax.service.controller.registry import Refused

TOKENS = {role.value: f"the token of {role.value}s" for role in Role}


class AccessTest(parameterized.TestCase):
  @parameterized.parameters(*TOKENS)
  def test_a_role_without_a_token_would_be_open(self, role):
    with self.assertRaisesRegex(ConfigError, f"no token of {role}s: give"):
      Access(**TOKENS | {role: ""})

  def test_roles_share_no_token(self):
    with self.assertRaisesRegex(ConfigError, "two roles have the same token"):
      Access(**TOKENS | {"worker": TOKENS["client"]})

  @parameterized.parameters("0.0.0.0", "::", "10.0.0.2", "myhost", "")
  def test_other_machines_need_tokens(self, bind):
    with self.assertRaisesRegex(ConfigError, "or.*--allow-anyone"):
      ServiceConfig(bind=bind)
    ServiceConfig(bind=bind, access=Access(**TOKENS))
    ServiceConfig(bind=bind, allows_anyone=True)

  @parameterized.parameters("127.0.0.1", "127.9.9.9", "::1", "localhost")
  def test_this_machine_needs_none(self, bind):
    self.assertTrue(is_loopback(bind))
    ServiceConfig(bind=bind)


class WorkerHostsTest(parameterized.TestCase, unittest.IsolatedAsyncioTestCase):
  async def check(self, address, sender="10.0.0.7", patterns=(), **known):
    await WorkerHosts(patterns).check(address, sender, is_known=False, **known)

  @parameterized.parameters(
    ("http://10.0.0.7:5021/api", "10.0.0.7"),
    ("http://[::ffff:10.0.0.7]:5021/api", "10.0.0.7"),
    ("http://10.0.0.7:5021/api", "::ffff:10.0.0.7"),
    ("https://10.0.0.7/api", "10.0.0.7"),
    ("http://127.0.0.1:5021/api", "127.0.0.1"),
    ("http://localhost:5021/api", "::1"),
  )
  async def test_the_senders_machine_is_allowed(self, address, sender):
    await self.check(address, sender)

  async def test_of_several_addresses_all_must_be_the_senders(self):
    found = [ipaddress.ip_address(x) for x in ("10.0.0.7", "169.254.169.254")]
    with (
      mock.patch.object(access, "_addresses_of", return_value=found),
      self.assertRaisesRegex(Refused, "not on the machine that sent it"),
    ):
      await self.check("http://two.example/api")

  @parameterized.parameters(
    "http://169.254.169.254/computeMetadata/v1",  # a cloud's own secrets
    "http://10.0.0.8:5021/api",
    "http://10.0.0.7.example.invalid/api",
    "http://10.0.0.7@10.0.0.8/api",
    "http://0x0a000008/api",
    "http://127.0.0.1:22/api",  # of the controller, from elsewhere
    "http://localhost:6379/api",
  )
  async def test_other_machines_are_not(self, address):
    with self.assertRaises(Refused):
      await self.check(address)

  @parameterized.parameters(
    "grpc://the-id-of-another-worker",
    "file:///etc/passwd",
    "http://",
    "http://host:0/api",
    "http://host:70000/api",
    "http://[10.0.0.7/api",
    "",
  )
  async def test_what_is_no_url_is_refused(self, address):
    with self.assertRaisesRegex(Refused, "must be a URL such as"):
      await self.check(address, patterns=("*",))

  @parameterized.parameters(
    ("http://10.1.2.3:5021/api", "10.1.0.0/16", True),
    ("http://10.2.2.3:5021/api", "10.1.0.0/16", False),
    ("http://GPU-3.internal:5021/api", "gpu-*.Internal", True),
    ("http://gpu-3.internal.evil.invalid:5021/api", "gpu-*.internal", False),
    ("http://10.1.2.3.invalid:5021/api", "10.1.0.0/16", False),
  )
  async def test_patterns_allow_names_and_networks(self, address, one, fits):
    if fits:
      await self.check(address, patterns=("other", one))
    else:
      with self.assertRaises(Refused):
        await self.check(address, patterns=(one,))

  async def test_a_sender_without_an_address_is_no_host(self):
    with self.assertRaises(Refused):
      await self.check("http://10.0.0.7/api", sender=None)

  async def test_names_of_known_workers_are_not_resolved_again(self):
    hosts = WorkerHosts()
    await hosts.check("http://gone.invalid/api", "10.0.0.7", is_known=True)
