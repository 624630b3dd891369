# Every command sets up its own environment first; nothing else is needed than
# Python 3.11 or 3.12 and a package index. ARGS are passed on:
#   make train ARGS="--config.seed=1 --config.name=seed1"
#   make test ARGS="tests/losses -k clipped"

PYTHON ?= python3
VENV ?= .venv
JETSTREAM := google-jetstream==0.2.2
ARGS ?=

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
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest $(ARGS)

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup $(VENV)-peers/ready
	$(VENV)/bin/python -m bench.run $(ARGS)

# Peers have requirements that may not suit ours.
$(VENV)-peers/ready: bench/peers/requirements.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-peers/bin/python -m pip install --quiet -r $<
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-peers runs build *.egg-info
