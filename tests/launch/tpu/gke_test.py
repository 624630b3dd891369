"""The JobSet and the commands that launch/gke/render.sh prints."""

import pathlib
import re
import shlex
import subprocess

import yaml
from absl.testing import absltest

from agentrl_jax.rollout.server import auth
from agentrl_jax.service.controller import metrics
from launch.config import command_line
from tests.launch.tpu.commands_test import CONFIG, dry_run

ROOT = pathlib.Path(__file__).parents[3]
POD = (
  "--name=qwen",
  "--learner=2xv5p-64",
  "--rollout=3xv6e-8",
  "--spot",
  "--environments=2xn2-standard-32:dbbench,webshop",
  "--workdir=gs://bucket/runs",
)
AWKWARD = (
  '--config.x=it\'s "a  b" @RUN@ & $HOME $$ $(HOME) $(B) \\n #: {c}: @COMMAND@'
)
GROWING = ("--max-environments=20",)
GOLDEN = pathlib.Path(__file__).parent / "golden" / "gke.yaml"
ROLES = ["learner", "rollout", "controller", "environments"]


def render(*options: str) -> str:
  done = subprocess.run(
    [ROOT / "launch" / "gke" / "render.sh", *options],
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return done.stdout


def documents(*options: str) -> dict[tuple[str, str], dict]:
  """Manifests by kind and name."""
  return {
    (document["kind"], document["metadata"]["name"]): document
    for document in yaml.safe_load_all(render(*options))
  }


def pods(manifests) -> dict[str, dict]:
  """Templates of Pods by role."""
  found = {}
  for (kind, _), document in manifests.items():
    if kind == "JobSet":
      for job in document["spec"]["replicatedJobs"]:
        found[job["name"]] = job["template"]["spec"]["template"]
    elif kind == "Deployment":
      template = document["spec"]["template"]
      found[template["metadata"]["labels"]["agentrl-role"]] = template
  return found


def started(word: str, variables=frozenset()) -> str:
  """A word of a command as the kubelet passes it on.

  Kubernetes expands $(NAME) if the container has such a variable.
  """

  def expand(found):
    if found[0] == "$$":
      return "$"
    assert found[1] not in variables, found[0]
    return found[0]

  return re.sub(r"\$\$|\$\(([^)]*)\)", expand, word)


class GkeTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.manifests = documents("--image=reg/trainer:1", *POD, *CONFIG, AWKWARD)
    cls.document = cls.manifests["JobSet", "qwen"]
    cls.jobs = {
      job["name"]: job for job in cls.document["spec"]["replicatedJobs"]
    }

  def pod(self, role):
    return pods(self.manifests)[role]["spec"]

  def container(self, role):
    (container,) = self.pod(role)["containers"]
    return container

  def command(self, role):
    container = self.container(role)
    variables = {variable["name"] for variable in container["env"]}
    return [started(word, variables) for word in container["command"]]

  def test_the_jobset_ends_and_restarts_with_its_learner(self):
    refused, taken_away = self.document["spec"]["failurePolicy"]["rules"]
    for rule in (refused, taken_away):
      # What the webhook of JobSet demands of a name.
      self.assertRegex(
        rule["name"], r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
      )
    # The first rule that matches counts. Messages are those of the Job
    # controller of Kubernetes, pkg/controller/job/pod_failure_policy.go.
    for message, action in (
      (
        "Container learner for pod default/qwen-learner-0-0-x failed with exit "
        "code 2 matching FailJob rule at index 0",
        "FailJobSet",
      ),
      (
        "Pod default/qwen-learner-0-0-x has condition DisruptionTarget "
        "matching FailJob rule at index 1",
        "RestartJobSetAndIgnoreMaxRestarts",
      ),
      ("Job has reached the specified backoff limit", None),
      ("... failed with exit code 22 matching FailJob rule at index 0", None),
    ):
      with self.subTest(message):
        self.assertEqual(
          next(
            (
              rule["action"]
              for rule in (refused, taken_away)
              for pattern in rule["onJobFailureMessagePatterns"]
              if re.search(pattern, message)
            ),
            None,
          ),
          action,
        )
    for role, job in self.jobs.items():
      refusal, _ = job["template"]["spec"]["podFailurePolicy"]["rules"]
      self.assertEqual(
        refusal["onExitCodes"],
        {
          "containerName": self.container(role)["name"],
          "operator": "In",
          "values": [command_line.REFUSED],
        },
      )

  def test_every_manifest_is_as_recorded(self):
    """After a change: write it anew, and read what differs."""
    text = render("--image=reg/trainer:1", *POD, *GROWING, *CONFIG)
    self.assertEqual(text, GOLDEN.read_text())

  def test_probes_need_no_token(self):
    probes = re.findall(r"httpGet: \{ ?path: (\S+),", GOLDEN.read_text())
    self.assertNotEmpty(probes)
    self.assertContainsSubset(probes, {*auth.OPEN, metrics.PATH})

  def test_commands_are_those_of_tpu_run(self):
    ssh = [
      shlex.split(line)
      for line in dry_run(
        *POD, "--zone=z", "--project=p", "--dry-run", *CONFIG, AWKWARD
      )
      if " ssh " in line
    ]
    there = {}
    for words in ssh:
      (command,) = (w for w in words if w.startswith("--command="))
      line = shlex.split(command.removeprefix("--command="))
      if "start" in line:
        place = line[line.index("start") + 1].rpartition("-")[0] or "learner"
        if "agentrl_jax.service.controller" in line:
          place = "controller"
        there[place] = line[line.index("--") + 1 :]
        restart = line[line.index("--") - 1]
        if place not in self.jobs:
          restart = "never"  # the kubelet starts the container again
        with self.subTest(place):
          self.assertEqual(
            self.command(place)[:6],
            ["bash", "launch/tpu/bootstrap.sh", "run", place, restart, "--"],
          )
    self.assertCountEqual(there, ROLES)
    # Machines of their own are not taken away while a run plays there.
    there["environments"].append("--drain_s=240")
    for role, words in there.items():
      with self.subTest(role):
        self.assertEqual(
          _comparable(self.command(role)[6:]), _comparable(words)
        )

  def test_words_arrive_as_they_are(self):
    words = [AWKWARD, "--config.y=a\n\n\tb\n", "--config.z=- {a: [é, 'b]"]
    manifests = documents(
      "--image=i", *POD, "--env=A=$(HOME)\n@ENV@", *CONFIG, *words
    )
    for role in ("learner", "rollout", "environments"):
      (container,) = pods(manifests)[role]["spec"]["containers"]
      variables = {v["name"]: started(v["value"]) for v in container["env"]}
      self.assertEqual(variables["A"], "$(HOME)\n@ENV@")
      self.assertContainsSubset(
        words, [started(word, variables) for word in container["command"]]
      )

  def test_slices_of_one_host_do_not_learn_together(self):
    options = ("--image=i", "--name=q", "--workdir=gs://b/runs")
    with self.assertRaisesRegex(
      AssertionError, "2xv5p-8: on Kubernetes only slices of several hosts"
    ):
      render(*options, "--learner=2xv5p-8", *CONFIG)

  def test_tpu7x_is_rented_here(self):
    options = ("--image=i", "--name=q", "--workdir=gs://b/runs")
    manifests = documents(*options, "--learner=2xtpu7x-384", *CONFIG)
    self.assertCountEqual(
      manifests, [("NetworkPolicy", "q-learner"), ("JobSet", "q")]
    )
    (job,) = manifests["JobSet", "q"]["spec"]["replicatedJobs"]
    self.assertEqual(job["replicas"], 2)
    spec = job["template"]["spec"]
    self.assertEqual(spec["parallelism"], 48)
    self.assertEqual(
      spec["template"]["spec"]["nodeSelector"],
      {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "4x4x12",
      },
    )

  def test_what_is_missing_is_named(self):
    with self.assertRaisesRegex(AssertionError, "--image must name"):
      render(*POD, *CONFIG)
    with self.assertRaisesRegex(AssertionError, "must be a bucket"):
      render(
        "--image=i", "--name=q", "--learner=v5p-8", "--workdir=/mnt/x", *CONFIG
      )
    for option, sentence in (
      ("--max-environments=1", "less than the machines of --environments=2x"),
      ("--max-environments=many", "must be a number of machines"),
      (
        "--environments=1xe2-micro:dbbench",
        "e2-micro does not name its number",
      ),
      ("--environments=1xn1-highcpu-1:dbbench", "is too small"),
      ("--tokens-secret=My Secret", "must be the name of a Secret"),
      ("--env=A=\x07", "control characters"),
    ):
      with (
        self.subTest(option),
        self.assertRaisesRegex(AssertionError, sentence),
      ):
        render("--image=i", *POD, option, *CONFIG)
    with self.assertRaisesRegex(AssertionError, "no machines of environments"):
      render(
        "--image=i",
        "--name=q",
        "--learner=v5p-8",
        "--workdir=gs://b/runs",
        "--max-environments=3",
        *CONFIG,
      )


def _comparable(words: list[str]) -> list[str]:
  """A command without addresses, and without what says who may call."""
  hosts = r"ADDRESS-OF-[-\w]+|qwen-[-\w]+\.qwen|qwen-controller|127\.0\.0\.1"
  line = "\0".join(re.sub(hosts, "HOST", word) for word in words)
  tokens = r"\0[^\0]*token[^\0=]*[\0=]/etc/agentrl/tokens/\w+|\0--allow-anyone"
  return re.sub(tokens, "", line).split("\0")
