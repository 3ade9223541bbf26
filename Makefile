# `make demo` trains on this machine, `make test` checks each part of it. Both install what they need into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
HARNESS := $(BIN)/python -m tests.cluster.harness
# What `make test` leaves out: see tests/README.md.
BOUNDED := not slow and not gpu

.PHONY: demo test test-all slow chaos settings-matrix lint test-torch unit format docs cluster-up cluster-down demo-cluster clean

demo: .venv/.trainer                 ## train the digits example with 2 ranks on this machine
	$(BIN)/ddpjob run examples/digits.yaml

test: lint                           ## linters, types, unit tests, one end-to-end pass on a cluster
	$(BIN)/pytest -m "$(BOUNDED)"

test-all: lint                       ## everything that can run here
	$(BIN)/pytest -m "not gpu"

slow: .venv/.dev                     ## what `make test` leaves out because it takes long
	$(BIN)/pytest -m "slow and not chaos and not gpu"

chaos: .venv/.dev                    ## break trainings on a cluster in every way we know, and say what it cost
	$(BIN)/pytest -m chaos

test-torch:                          ## the trainer's tests with another torch: make test-torch VERSION=2.4.1
	$(PYTHON) tests/torch_versions.py $(VERSION)

unit: .venv/.dev                     ## everything but the cluster
	$(BIN)/pytest -m "$(BOUNDED) and not cluster"

settings-matrix: .venv/.dev          ## real programs × settings: asked and in effect; exit 1 on a silent difference
	$(BIN)/python -m tests.trainer.programs.matrix

lint: .venv/.dev                     ## ruff, mypy --strict, import-linter
	$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo > /dev/null || $(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: .venv/.dev                     ## write what is generated anew: pages, dashboards, the chart's README and copy of the CRD
	$(BIN)/python -m docs.generate
	cp crds/ddpjob.yaml charts/ddpjob/files/ddpjob.yaml

cluster-up: .venv/.dev               ## a real Kubernetes of two nodes on this machine (tests/cluster/README.md)
	$(HARNESS) up --detach

cluster-down: .venv/.dev             ## end it, and leave nothing behind
	$(HARNESS) down

demo-cluster: .venv/.dev             ## Helm install, kubectl apply, wait, show
	$(BIN)/python -m tests.cluster.demo

clean:
	@test ! -x $(BIN)/python || $(HARNESS) down
	rm -rf .venv .venv-torch-* .ddpjob .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# torch from PyPI is a CUDA build of about 3 GB with its libraries: minutes the first time, seconds after that.
.venv/.trainer: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing ddpjob and torch into .venv (about 3 GB the first time)"
	$(PIP) -e '.[trainer]'
	@touch $@

.venv/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing ddpjob, torch and the tools of the tests into .venv (about 3 GB the first time)"
	$(PIP) -e '.[dev]'
	@touch $@ .venv/.trainer
