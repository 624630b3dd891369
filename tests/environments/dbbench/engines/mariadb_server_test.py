"""Tests addresses and private servers."""

import pathlib
import shutil
import unittest
from unittest import mock

import pytest

from agentrl_jax.errors import ConfigError, EnvironmentFault
from environments.dbbench.engines.mariadb_server import (
  Address,
  PrivateServer,
  read_address,
)
from tests.environments.dbbench.data import needs_mariadb


class AddressTest(unittest.TestCase):
  def test_valid_addresses(self):
    self.assertEqual(read_address("db:3307"), Address(host="db", port=3307))
    self.assertEqual(read_address("db"), Address(host="db", port=3306))
    self.assertEqual(
      read_address("me:p%40ss@10.0.0.1:3306"),
      Address(host="10.0.0.1", port=3306, user="me", password="p@ss"),
    )

  def test_invalid_addresses_are_refused(self):
    for server in ("", ":3306", "db:port", "db:3306/x", "db:99999999"):
      with self.subTest(server=server), self.assertRaises(ConfigError):
        read_address(server)

  def test_a_server_that_does_not_answer_is_a_fault(self):
    with self.assertRaisesRegex(EnvironmentFault, "127.0.0.1:1 "):
      Address(host="127.0.0.1", port=1).connect()


@pytest.mark.mariadb
class PrivateServerTest(unittest.TestCase):
  def setUp(self):
    needs_mariadb()

  @pytest.mark.slow
  def test_stopping_removes_the_folder(self):
    server = PrivateServer()
    address = server.start()
    self.addCleanup(server.stop)
    folder = pathlib.Path(address.socket).parent
    with address.connect() as connection, connection.cursor() as cursor:
      cursor.execute("SELECT 1 + 1")
      self.assertEqual(cursor.fetchall(), ((2,),))
    server.stop()
    self.assertFalse(folder.exists())
    with self.assertRaises(EnvironmentFault):
      address.connect()
    server.stop()  # has no effect

  def test_a_server_that_does_not_start_is_a_fault_with_its_log(self):
    server = PrivateServer()
    with (
      mock.patch.object(server, "_install", lambda: None),
      self.assertRaisesRegex(EnvironmentFault, "log ends: 2"),
    ):
      server.start()


class MissingProgramTest(unittest.TestCase):
  def test_the_error_names_program_and_package(self):
    real = shutil.which
    for absent in ("mariadbd", "mariadb-install-db"):
      with (
        mock.patch.object(
          shutil,
          "which",
          lambda name, absent=absent: (
            None if name == absent else real(name) or f"/usr/bin/{name}"
          ),
        ),
        self.assertRaisesRegex(
          ConfigError, f"program {absent}, .*mariadb-server-core"
        ),
      ):
        PrivateServer()
