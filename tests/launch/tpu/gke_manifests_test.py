"""Manifests of launch/gke: valid, closed to strangers, without a secret."""

import functools
import json
import re

import yaml
from absl.testing import absltest, parameterized

from agentrl_jax.service.controller.access import Role
from tests.launch.tpu.commands_test import CONFIG
from tests.launch.tpu.gke_test import AWKWARD, POD, documents, pods, render

try:
  import kubernetes_validate
except ImportError:
  kubernetes_validate = None

VERSIONS = ("1.31", "1.35")  # of Kubernetes
IMAGE = "--image=reg/trainer:1"
GROWING = (IMAGE, *POD, "--max-environments=20", *CONFIG, AWKWARD)
ALONE = (IMAGE, "--name=q", "--learner=v5p-8", "--workdir=gs://b/r", *CONFIG)
# Runs whose names YAML takes for something other than text.
VARIANTS = (
  GROWING,
  (IMAGE, *POD, *CONFIG),
  (IMAGE, *POD, "--runtime-class=gvisor", "--env=A=@COMMAND@", *CONFIG),
  (IMAGE, *POD, "--controller=e2-standard-4", *CONFIG),
  ALONE,
  *((*ALONE[:1], f"--name={name}", *ALONE[2:]) for name in ("no", "null", "y")),
)
# JobSet and PodMonitoring are of others than Kubernetes: what is rendered was
# checked once with their CustomResourceDefinitions (2026-08), and here no other
# field may appear.
JOBSET = {
  "successPolicy": {"operator", "targetReplicatedJobs"},
  "failurePolicy": {"maxRestarts", "rules"},
  "replicatedJobs": {"name", "replicas", "template"},
}
RULES = {
  "name",
  "action",
  "onJobFailureReasons",
  "onJobFailureMessagePatterns",
  "targetReplicatedJobs",
}
TOP = {"apiVersion", "kind", "metadata", "spec"}


@functools.cache
def check_schema(text, version):
  """Raises an error if the API of Kubernetes would refuse the manifest.

  It is JSON, and checked once: most are the same in several variants.
  """
  document = json.loads(text)
  kind, spec = document["kind"], document.get("spec")
  if kind == "JobSet":
    _known(document, TOP)
    _known(spec, JOBSET)
    for key, fields in JOBSET.items():
      for part in spec[key] if isinstance(spec[key], list) else [spec[key]]:
        _known(part, fields)
    for rule in spec["failurePolicy"]["rules"]:
      _known(rule, RULES)
    for job in spec["replicatedJobs"]:
      job = {"apiVersion": "batch/v1", "kind": "Job"} | job["template"]
      kubernetes_validate.validate(job, version, strict=True)
  elif kind == "PodMonitoring":
    assert document["apiVersion"] == "monitoring.googleapis.com/v1"
    _known(document, TOP)
    _known(spec, {"selector", "endpoints"})
    _known(spec["selector"], {"matchLabels"})
    for endpoint in spec["endpoints"]:
      _known(endpoint, {"port", "interval"})
      assert re.fullmatch(r"\d+s", endpoint["interval"])
  else:
    kubernetes_validate.validate(document, version, strict=True)


def _known(mapping, keys):
  if unknown := set(mapping) - set(keys):
    raise AssertionError(f"unknown fields: {unknown}")


def matches(selector, labels) -> bool:
  """Returns True if a label selector of Kubernetes selects these labels."""
  assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
  for expression in selector.get("matchExpressions", ()):
    assert expression["operator"] == "In", expression
    if labels.get(expression["key"]) not in expression["values"]:
      return False
  return selector.get("matchLabels", {}).items() <= labels.items()


def allows(rules, port, labels, namespace=None) -> bool:
  """Returns True if a policy's rules let a Pod in, or out to it.

  Args:
    rules: of one direction.
    port: a number.
    labels: of the other Pod.
    namespace: its labels; None is the namespace of the policy.
  """
  for rule in rules:
    peers = rule.get("from", rule.get("to"))
    assert peers, "a rule without peers is for the world"
    if port not in [p["port"] for p in rule.get("ports", [{"port": port}])]:
      continue
    for peer in peers:
      assert "ipBlock" not in peer, peer
      if "namespaceSelector" in peer:
        is_there = namespace is not None and matches(
          peer["namespaceSelector"], namespace
        )
      else:
        is_there = namespace is None
      if is_there and matches(peer.get("podSelector", {}), labels):
        return True
  return False


@absltest.skipIf(kubernetes_validate is None, "pip install kubernetes-validate")
class SchemaTest(parameterized.TestCase):
  @parameterized.parameters(*((options,) for options in VARIANTS))
  def test_the_api_accepts_every_manifest(self, options):
    manifests = documents(*options)
    for (kind, name), document in manifests.items():
      for version in VERSIONS:
        with self.subTest(kind=kind, name=name, version=version):
          check_schema(json.dumps(document), version)


class EveryManifestTest(parameterized.TestCase):
  @parameterized.parameters(*((options,) for options in VARIANTS))
  def test_is_found_by_the_label_of_the_run(self, options):
    (name,) = {o.partition("=")[2] for o in options if o.startswith("--name=")}
    manifests = documents(*options)
    self.assertEqual(
      len(manifests), len(list(yaml.safe_load_all(render(*options))))
    )
    for document in manifests.values():
      labels = document["metadata"]["labels"]
      self.assertEqual(labels["agentrl-run"], name)
      self.assertNotIn("namespace", document["metadata"])
    for role, template in pods(manifests).items():
      self.assertEqual(
        template["metadata"]["labels"],
        {"agentrl-run": name, "agentrl-role": role},
      )

  @parameterized.parameters(*((options,) for options in VARIANTS))
  def test_has_no_secret_and_no_open_door(self, options):
    text = render(*options)
    self.assertNotIn("allow-anyone", text)
    self.assertNotRegex(text, r"kind: Secret|stringData|[0-9a-f]{16}")
    self.assertNotRegex(text, r"hostNetwork|hostPath|privileged|hostPID")

  @parameterized.parameters(
    ("n2-standard-32", 24, 32, 128e9),
    ("e2-standard-2", 1, 2, 8e9),
    ("n1-standard-8", 6, 8, 30e9),
    ("n1-highmem-8", 6, 8, 52e9),
    ("n2-highcpu-32", 24, 32, 32e9),
    ("c3-standard-88-lssd", 66, 88, 352e9),
    ("n2-custom-8-16384", 6, 8, 16384 * 2**20),
  )
  def test_a_pod_asks_for_most_of_its_machine(
    self, machine, cpus, most, memory
  ):
    options = (*ALONE[:4], f"--environments=1x{machine}:dbbench", *CONFIG)
    (container,) = pods(documents(*options))["environments"]["spec"][
      "containers"
    ]
    resources = container["resources"]
    self.assertEqual(resources["requests"]["cpu"], cpus)
    self.assertGreater(2 * cpus, most - 1)
    self.assertEqual(resources["limits"]["cpu"], most)
    asked = int(resources["requests"]["memory"].removesuffix("Mi")) * 2**20
    self.assertBetween(asked / memory, 0.6, 0.9)
    self.assertEqual(
      resources["limits"]["memory"], resources["requests"]["memory"]
    )


class DeploymentsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.manifests = documents(*GROWING)
    cls.pods = pods(cls.manifests)

  def volumes(self, role):
    return {v["name"]: v for v in self.pods[role]["spec"]["volumes"]}

  def test_each_role_has_the_tokens_that_it_sends(self):
    for role, keys in (
      ("controller", [role.value for role in Role]),
      ("learner", ["client"]),
      ("environments", ["worker"]),
      ("rollout", []),
    ):
      with self.subTest(role):
        spec = self.pods[role]["spec"]
        (container,) = spec["containers"]
        secret = self.volumes(role).get("tokens", {}).get("secret", {})
        self.assertEqual([i["key"] for i in secret.get("items", ())], keys)
        words = " ".join(container["command"])
        self.assertCountEqual(
          set(re.findall(r"/etc/agentrl/tokens/(\w+)", words)), keys
        )
        if keys:
          self.assertEqual(secret["secretName"], "agentrl-tokens")
          self.assertNotIn("optional", secret)  # a Pod without it never starts
          self.assertEqual(secret["defaultMode"] & 0o007, 0)

  def test_the_secret_has_another_name_if_one_is_given(self):
    text = render(*GROWING[:1], "--tokens-secret=mine", *GROWING[1:])
    self.assertEqual(text.count('secretName: "mine"'), 3)
    self.assertNotIn("agentrl-tokens", text)

  def test_what_runs_a_policys_code_has_no_rights(self):
    for role in ("controller", "environments"):
      spec = self.pods[role]["spec"]
      self.assertIs(spec["automountServiceAccountToken"], False)
      self.assertTrue(spec["securityContext"]["runAsNonRoot"])
      (container,) = spec["containers"]
      self.assertEqual(
        container["securityContext"],
        {
          "allowPrivilegeEscalation": False,
          "readOnlyRootFilesystem": True,
          "capabilities": {"drop": ["ALL"]},
        },
      )
      self.assertCountEqual(self.volumes(role), ["tokens", "tmp"])  # no bucket
    # The account of the learner may use the bucket.
    account = self.pods["environments"]["spec"]["serviceAccountName"]
    self.assertEqual(account, "qwen-environments")
    self.assertIs(
      self.manifests["ServiceAccount", account]["automountServiceAccountToken"],
      False,
    )
    for role in ("learner", "rollout"):
      self.assertNotEqual(
        self.pods[role]["spec"]["serviceAccountName"], account
      )

  def test_without_an_autoscaler_the_number_is_fixed(self):
    manifests = documents(IMAGE, *POD, *CONFIG)
    self.assertNotIn("HorizontalPodAutoscaler", {kind for kind, _ in manifests})
    spec = manifests["Deployment", "qwen-environments"]["spec"]
    self.assertEqual(spec["replicas"], 2)


class NetworkTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    manifests = documents(*GROWING)
    cls.labels = {
      role: template["metadata"]["labels"]
      for role, template in pods(manifests).items()
    }
    cls.policies = [
      document["spec"]
      for (kind, _), document in manifests.items()
      if kind == "NetworkPolicy"
    ]

  def policy(self, labels):
    found = [p for p in self.policies if matches(p["podSelector"], labels)]
    return found[0] if found else None

  def reaches(self, sender, receiver, port, namespace=None):
    """Returns True if the policies let a connection pass, at both ends."""
    leaving, entering = self.policy(sender), self.policy(receiver)
    may_leave = (
      leaving is None
      or "Egress" not in leaving["policyTypes"]
      or allows(leaving["egress"], port, receiver, namespace)
    )
    may_enter = (
      namespace is not None  # not a Pod of ours
      or entering is None
      or "Ingress" not in entering["policyTypes"]
      or allows(entering["ingress"], port, sender)
    )
    return may_leave and may_enter

  def test_every_pod_has_one_policy(self):
    for labels in self.labels.values():
      found = [p for p in self.policies if matches(p["podSelector"], labels)]
      self.assertLen(found, 1)
      self.assertIn("Ingress", found[0]["policyTypes"])

  def test_roles_reach_each_other_where_they_must_and_nowhere_else(self):
    ports = (8476, 9000, 5020, 5021, 5022, 22)
    passing = {
      (a, b, port)
      for a in self.labels
      for b in self.labels
      for port in ports
      if self.reaches(self.labels[a], self.labels[b], port)
    }
    self.assertEqual(
      passing,
      {
        *(("learner", "learner", port) for port in ports),
        ("learner", "rollout", 9000),
        ("learner", "controller", 5020),
        ("environments", "controller", 5021),
      },
    )

  @parameterized.parameters(
    *(
      ({"agentrl-run": run, "agentrl-role": role},)
      for run in ("qwen2", "qwe", "")
      for role in ("learner", "environments", "controller", "rollout")
    ),
    ({"agentrl-role": "learner"},),
    ({"agentrl-run": "qwen"},),
    ({},),
  )
  def test_pods_of_other_runs_reach_nothing(self, stranger):
    for labels in self.labels.values():
      for port in (9000, 5020, 5021, 8476):
        self.assertFalse(self.reaches(stranger, labels, port))
    self.assertIsNone(self.policy(stranger))

  def test_prometheus_reads_metrics_alone(self):
    gmp = {"kubernetes.io/metadata.name": "gmp-system"}
    passing = {
      (role, port)
      for role, labels in self.labels.items()
      for port in (9000, 5020, 5021, 8476)
      for namespace in (gmp, {"kubernetes.io/metadata.name": "default"})
      if allows(self.policy(labels)["ingress"], port, {}, namespace)
    }
    self.assertEqual(passing, {("rollout", 9000), ("controller", 5020)})

  def test_an_environment_leaves_to_its_controller_and_dns_alone(self):
    policy = self.policy(self.labels["environments"])
    # A policy is about the directions that it lists, and no others.
    self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
    self.assertEqual(policy["ingress"], [])
    # An address such as the metadata server's, 169.254.169.254, is reached by
    # an ipBlock, or by a rule without `to`.
    self.assertNotIn("ipBlock", json.dumps(policy))
    system = {"kubernetes.io/metadata.name": "kube-system"}
    dns = {"k8s-app": "kube-dns"}
    for rule in policy["egress"]:
      self.assertTrue(rule["to"])
      for peer in rule["to"]:
        self.assertTrue(peer["podSelector"])
    self.assertTrue(allows(policy["egress"], 53, dns, system))
    for port, labels, namespace in (
      (53, {}, system),
      (53, dns, None),
      (53, dns, {"kubernetes.io/metadata.name": "default"}),
      (80, dns, system),
      (443, {}, system),
      (5020, self.labels["controller"], None),
    ):
      with self.subTest(port=port, labels=labels):
        self.assertFalse(allows(policy["egress"], port, labels, namespace))

  def test_the_controller_opens_no_connection(self):
    policy = self.policy(self.labels["controller"])
    self.assertIn("Egress", policy["policyTypes"])
    self.assertEqual(policy["egress"], [])
