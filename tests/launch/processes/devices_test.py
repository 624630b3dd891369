"""Processes on CPUs may reach a program half a minute apart."""

import os
import subprocess
import sys

import pytest

from tests.controller.processes import free_port

LATE_S = 35  # gloo waits 30 s for a new connection
LIMIT_S = 300

PROGRAM = f"""
import time
import jax
from jax.sharding import NamedSharding, PartitionSpec
from agentrl_jax.model import sharding
from launch.processes.devices import connect_devices
from launch.processes.group import ProcessLimits, joined

limits = ProcessLimits(
  join_timeout_s=120, heartbeat_timeout_s=120, wait_timeout_s=120
)
with joined(limits) as processes:
  mesh = sharding.make_mesh({{"data": 2, "fsdp": 2}})
  connect_devices(mesh, processes)
  place = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
  x = jax.jit(lambda: jax.numpy.ones(4), out_shardings=place)()
  # Over all devices: joining connects those of the same rank alone.
  program = jax.jit(lambda x: x.sum()).lower(x).compile()
  time.sleep({LATE_S} * processes.index)
  jax.block_until_ready(program(x))
  processes.share(what="the end")
print("all are there")
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_a_process_that_is_late_is_waited_for():
  port = free_port()
  running = [
    subprocess.Popen(
      [sys.executable, "-c", PROGRAM],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env={
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "AGENTRL_COORDINATOR": f"127.0.0.1:{port}",
        "AGENTRL_NUM_PROCESSES": "2",
        "AGENTRL_PROCESS_ID": str(index),
      },
    )
    for index in range(2)
  ]
  said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
  assert all("all are there" in text for text in said), said
