# Every command sets up its own environment first; nothing else is needed than
# Python 3.11 or 3.12 and a package index. ARGS are passed on:
#   make train ARGS="--config.seed=1 --config.name=seed1"
#   make test ARGS="tests/losses -k clipped"

PYTHON ?= python3
VENV ?= .venv
JETSTREAM := google-jetstream==0.2.2
ARGS ?=
TYPED := agentrl_jax/data agentrl_jax/env agentrl_jax/controller \
	agentrl_jax/rollout/client.py launch

.PHONY: setup train test check format bench clean

setup: $(VENV)/ready

# JetStream comes without its requirements: they would bring TensorFlow.
$(VENV)/ready: setup.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[jetstream,test]'
	$(VENV)/bin/python -m pip install --quiet --no-deps $(JETSTREAM)
	touch $@

train: setup
	$(VENV)/bin/python -m launch.train --config=configs/quickstart.py $(ARGS)

test: setup
	$(VENV)/bin/python -m pytest $(ARGS)

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --strict --follow-imports=silent $(TYPED)
	$(VENV)/bin/python -m pytest $(ARGS)

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup
	$(VENV)/bin/python -m bench.run $(ARGS)

clean:
	rm -rf $(VENV) runs build *.egg-info
