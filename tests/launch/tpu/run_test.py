"""launch/tpu_run.sh against a cloud of folders: see tests/launch/tpu/cloud."""

import pathlib
import re
import tempfile

import pytest
from absl.testing import parameterized

from tests.launch.tpu.cloud.cloud import Cloud

SLICE = ("--learner=v5p-16", "--workdir=gs://bucket/runs")
SMALL = ("--learner=v5p-8", "--workdir=gs://bucket/runs")
WORKDIR = "--workdir=gs://bucket/runs"
CONFIG = ("--", "--config=configs/quickstart.py")
BROUGHT = ["scp demo-learner", "on install demo-learner"]
FOREVER = 100_000
# Two slices of one host each, of one queued resource.
TWO_SLICES = """
hosts demo-learner-0 1
hosts demo-learner-1 1
$ gcloud compute tpus queued-resources describe demo-learner --format=value(state.state,
! ERROR: NOT_FOUND: was not found
? 1
--
| ACTIVE\tv5p-8
$ gcloud compute tpus queued-resources create demo-learner
! Created queued resource [demo-learner].
$ gcloud compute tpus tpu-vm describe demo-learner-
| READY
"""  # noqa: E501
STARTED = [
  "on running demo-learner",
  "on stop demo-learner",
  "on start demo-learner",
  "on follow demo-learner",
]


class TpuRunTest(parameterized.TestCase):
  def cloud(self, transcript: str) -> Cloud:
    folder = self.enterContext(tempfile.TemporaryDirectory())
    cloud = Cloud(pathlib.Path(folder), transcript)
    self.addCleanup(cloud.destroy)
    return cloud

  @pytest.mark.slow
  def test_creates_waits_prepares_starts_and_follows(self):
    cloud = self.cloud("created")
    awkward = '--config.name_of_x=it\'s "a  b" $HOME *'
    status, out, told = cloud.run(*SLICE, "--spot", *CONFIG, awkward)
    self.assertEqual(status, 0, told)
    self.assertEqual(cloud.deeds(), ["create demo-learner", *BROUGHT, *STARTED])
    create = next(call for call in cloud.calls() if "create" in call)
    for word in (
      "--accelerator-type=v5p-16",
      "--runtime-version=v2-alpha-tpuv5",
      "--node-id=demo-learner",
      "--spot",
      "--zone=us-east5-a",
      "--project=p",
    ):
      self.assertIn(word, create)
    for worker in (0, 1):
      self.assertIn(f"[learner/{worker}] step 5", out)
      words = (cloud.saved / f"launch.train-{worker}.words").read_text()
      self.assertEqual(
        words.splitlines(),
        [
          "-m",
          "launch.train",
          "--config=configs/quickstart.py",
          awkward,
          f"--config.workdir={cloud.folder}/mounts/bucket/runs",
          "--config.name=demo",
          "--config.checkpoint.grace_s=300",
        ],
      )
    around = (cloud.saved / "environment-1").read_text()
    self.assertIn("AGENTRL_NUM_PROCESSES=auto", around)
    mounts = (cloud.folder / "mounted").read_text().splitlines()
    self.assertLen(mounts, 2)
    self.assertEndsWith(mounts[0], f" bucket {cloud.folder}/mounts/bucket")
    self.assertIn("still cost money", told)
    self.assertIn("--name=demo --teardown", told)

  @pytest.mark.slow
  def test_slices_that_learn_together_are_one_request(self):
    cloud = self.cloud(TWO_SLICES)
    status, out, told = cloud.run("--learner=2xv5p-8", WORKDIR, *CONFIG)
    self.assertEqual(status, 0, told)
    create = next(call for call in cloud.calls() if "create" in call)
    for word in ("--node-count=2", "--node-prefix=demo-learner"):
      self.assertIn(word, create)
    started = [d for d in cloud.deeds() if d.startswith("on start")]
    self.assertCountEqual(
      started, ["on start demo-learner-0", "on start demo-learner-1"]
    )
    for host in ("0.0", "1.0"):
      self.assertIn(f"[learner/{host}] step 5", out)

  @pytest.mark.slow
  def test_a_process_of_one_slice_breaks_and_both_start_again(self):
    cloud = self.cloud(TWO_SLICES)
    status, _, told = cloud.run(
      "--learner=2xv5p-8",
      WORKDIR,
      "--peers=0",
      "--grace=5",
      *CONFIG,
      steps=8,
      BREAK_AT="0:4",
    )
    self.assertEqual(status, 0, told)
    self.assertRegex(told, r"learner/[01]\.0 ended with status 3")
    self.assertIn("(restart 1 of", told)
    first, second = (
      cloud.deeds().count(f"on start demo-learner-{n}") for n in (0, 1)
    )
    # One or two restarts: both hosts are number 0 of their slice, and break.
    self.assertEqual(first, second)
    self.assertGreaterEqual(first, 2)

  @pytest.mark.slow
  def test_what_exists_is_used_again(self):
    self._is_used_again("existing")

  @pytest.mark.full
  def test_what_someone_else_made_meanwhile_is_used(self):
    self._is_used_again("raced")

  def _is_used_again(self, transcript):
    cloud = self.cloud(transcript)
    status, _, told = cloud.run(*SLICE, *CONFIG, steps=1)
    self.assertEqual(status, 0, told)
    self.assertIn("exists", told)
    self.assertEqual(
      [deed for deed in cloud.deeds() if not deed.startswith("create")],
      [*BROUGHT, *STARTED],
    )

  @parameterized.parameters(
    ("quota", "no quota for demo-learner: 1 x v5p-16 (spot) in us-east5-a"),
    ("failed", "was refused: Quota 'TPUV5PPerProjectPerZoneForTPUAPI' exhaus"),
    ("denied", "gcloud cannot say how demo-learner stands: ERROR: (gcloud"),
    ("waiting", "waited 0 s for demo-learner (v5p-16 in us-east5-a)"),
  )
  def test_what_cannot_be_had_is_explained(self, transcript, sentence):
    cloud = self.cloud(transcript)
    status, _, told = cloud.run(*SLICE, "--spot", "--wait=0", *CONFIG)
    self.assertEqual(status, 1)
    self.assertIn(sentence, told)
    self.assertNotIn("on start demo-learner", cloud.deeds())
    self.assertNotIn("where it should not", told)

  def test_the_quota_that_is_missing_is_named_with_what_to_do(self):
    cloud = self.cloud("quota")
    _, _, told = cloud.run(*SLICE, "--spot", *CONFIG)
    self.assertIn("TPUV5PPreemptiblePerProjectPerZoneForTPUAPI", told)
    self.assertIn("iam-admin/quotas?project=p", told)
    self.assertIn("leave --spot out", told)

  def test_another_slice_under_the_name_is_refused(self):
    cloud = self.cloud("existing")
    status, _, told = cloud.run(*SMALL, *CONFIG)
    self.assertEqual(status, 1)
    self.assertIn("demo-learner exists and is a v5p-16, not the v5p-8", told)

  @pytest.mark.slow
  def test_goes_on_where_it_was_when_it_was_preempted(self):
    self._goes_on("preempted", SLICE)

  @pytest.mark.full
  def test_goes_on_where_it_was_when_it_was_suspended(self):
    self._goes_on("suspended", SMALL)

  def _goes_on(self, name, learner):
    cloud = self.cloud(name)
    cloud.start(*learner, "--spot", *CONFIG, steps=FOREVER)
    cloud.until("the third step", lambda: cloud.step() >= 3)
    cloud.scene(2)
    delete = "delete demo-learner"
    cloud.until("the deletion", lambda: delete in cloud.deeds())
    cloud.until("all of it to be gone", lambda: not cloud.alive())
    before = cloud.step()
    cloud.scene(3)
    cloud.until("the run to go on", lambda: cloud.step() > before)
    cloud.enough()
    status, out, told = cloud.end()
    self.assertEqual(status, 0, told)
    self.assertIn("demo-learner was taken away", told)
    deeds = cloud.deeds()
    again = deeds[deeds.index(delete) :]
    self.assertEqual(again, [delete, "create demo-learner", *BROUGHT, *STARTED])
    resumed = [
      line for line in out.splitlines() if "[learner/0] goes on" in line
    ]
    self.assertLen(resumed, 2)
    self.assertEqual(int(resumed[1].rpartition(" ")[2]), before)

  @pytest.mark.slow
  def test_one_process_breaks_and_all_start_again(self):
    cloud = self.cloud("existing")
    status, out, told = cloud.run(
      *SLICE, "--peers=0", "--grace=5", *CONFIG, steps=8, BREAK_AT="1:4"
    )
    self.assertEqual(status, 0, told)
    self.assertIn("learner/1 ended with status 3", told)
    self.assertIn("starts again from its last checkpoint (restart 1 of", told)
    self.assertIn("[learner/0] hangs", out)
    self.assertEqual(cloud.deeds(), [*BROUGHT, *STARTED, *STARTED])
    self.assertEqual((cloud.step(0), cloud.step(1)), (8, 8))

  @pytest.mark.slow
  def test_gives_up_on_what_breaks_every_time(self):
    cloud = self.cloud("existing")
    status, _, told = cloud.run(*SLICE, "--restarts=1", *CONFIG, BREAK_WITH="7")
    self.assertEqual(status, 1)
    self.assertIn("the learner ended with status 7, for the 2. time", told)
    self.assertEqual(cloud.deeds(), [*BROUGHT, *STARTED, *STARTED])

  @pytest.mark.slow
  def test_what_is_refused_is_not_started_again(self):
    cloud = self.cloud("existing")
    status, _, told = cloud.run(*SLICE, *CONFIG, BREAK_WITH="2")
    self.assertEqual(status, 1)
    self.assertIn("demo-learner refuses its flags or its config", told)
    self.assertIn("the resources are kept", told)
    self.assertIn("--name=demo --teardown", told)
    stop = "on stop demo-learner"
    self.assertEqual(cloud.deeds(), [*BROUGHT, *STARTED, stop])

  @pytest.mark.slow
  def test_ctrl_c_leaves_the_run_and_the_next_call_attaches(self):
    cloud = self.cloud("existing")
    cloud.start(*SLICE, *CONFIG, steps=FOREVER)
    cloud.until("the third step", lambda: cloud.step() >= 3)
    cloud.interrupt()
    status, _, told = cloud.end()
    self.assertEqual(status, 130, told)
    self.assertIn("the run goes on without being watched", told)
    self.assertIn("--name=demo --teardown", told)
    self.assertNotIn("delete demo-learner", cloud.deeds())
    seen = cloud.step()
    cloud.until("the run to go on", lambda: cloud.step() > seen)
    cloud.start(*SLICE, *CONFIG, steps=FOREVER)
    cloud.until("it to attach", lambda: "follows" in cloud.told())
    cloud.enough()
    status, out, told = cloud.end()
    self.assertEqual(status, 0, told)
    self.assertIn("the learner runs already; its output follows", told)
    self.assertEqual(out.count("[learner/0] goes on at"), 1)
    self.assertEqual(cloud.deeds().count("on start demo-learner"), 1)

  @pytest.mark.full
  def test_ctrl_c_deletes_what_it_was_told_to_delete(self):
    cloud = self.cloud("existing")
    cloud.start(*SLICE, "--teardown-on-exit", *CONFIG, steps=FOREVER)
    cloud.until("the first step", lambda: cloud.step() >= 1)
    cloud.interrupt()
    status, _, told = cloud.end()
    self.assertEqual(status, 130, told)
    self.assertIn("delete demo-learner", cloud.deeds())
    self.assertIn("its folder and checkpoints are kept", told)

  def test_teardown_deletes_this_run_and_nothing_else(self):
    cloud = self.cloud("existing")
    status, _, told = cloud.run("--teardown")
    self.assertEqual(status, 0, told)
    self.assertEqual(
      cloud.deeds(),
      [
        "delete demo-learner",
        "delete demo-rollout-0",
        "delete demo-environments-0",
      ],
    )

  @pytest.mark.slow
  def test_stop_lets_the_learner_save(self):
    cloud = self.cloud("existing")
    cloud.start(*SLICE, *CONFIG, steps=FOREVER)
    cloud.until("the first step", lambda: cloud.step() >= 1)
    cloud.interrupt()
    cloud.end()
    status, _, told = cloud.run("--stop", *SLICE)
    self.assertEqual(status, 0, told)
    self.assertEqual(cloud.alive(), [])
    logs = list(cloud.folder.rglob("places/learner/log"))
    self.assertLen(logs, 2)
    for log in logs:
      self.assertRegex(log.read_text(), r"saved \d+\n$")

  @pytest.mark.slow
  def test_a_lost_rollout_comes_again_and_the_learner_hears_of_it(self):
    cloud = self.cloud("rollout_lost")
    cloud.start(*SMALL, "--rollout=v6e-8", *CONFIG, steps=FOREVER)
    cloud.until("the third step", lambda: cloud.step() >= 3)
    words = cloud.saved / "launch.train-0.words"
    self.assertIn(
      '--config.rollouts.servers=("10.202.0.7:9000",)',
      words.read_text().splitlines(),
    )
    cloud.scene(2)
    cloud.until(
      "the deletion", lambda: "delete demo-rollout-0" in cloud.deeds()
    )
    seen = cloud.step()
    cloud.until("the learner to go on alone", lambda: cloud.step() > seen)
    cloud.scene(3)
    again = '("10.202.0.9:9000",)'
    cloud.until("the address", lambda: again in words.read_text())
    cloud.enough()
    status, out, told = cloud.end()
    self.assertEqual(status, 0, told)
    self.assertIn("the learner starts again, with what changed", told)
    self.assertLen(re.findall(r"\[learner/0\] goes on at \d", out), 2)
    self.assertEqual(cloud.alive(), [])

  @pytest.mark.slow
  def test_machines_play_what_they_are_told_to(self):
    cloud = self.cloud("environments")
    status, _, told = cloud.run(
      *SLICE, "--environments=n2-standard-32:dbbench,webshop", *CONFIG, steps=3
    )
    self.assertEqual(status, 0, told)
    self.assertIn("has no room for demo-environments-0", told)
    host = (cloud.saved / "launch.serve_environments-0.words").read_text()
    self.assertIn("--environments=dbbench,webshop", host.splitlines())
    self.assertIn("--controller=grpc://10.202.0.4:5021", host.splitlines())
    served = "agentrl_jax.service.controller-0.words"
    self.assertIn("--bind", (cloud.saved / served).read_text().splitlines())
    learner = (cloud.saved / "launch.train-0.words").read_text().splitlines()
    for name in ("dbbench", "webshop"):
      self.assertIn(
        f"--config.environments.{name}.place.controller="
        "http://127.0.0.1:5020/api",
        learner,
      )
    self.assertEqual(cloud.alive(), [])
