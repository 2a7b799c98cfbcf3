PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
CASES ?= 5000
PROFILE ?= embedded
# Of pytest: some tests wait, so that three keep two cores busy.
WORKERS ?= 3
SERVICES := $(or $(MILLRACE_SERVICES),runs/services)
# With PROFILE=services the servers are started if need be, and their addresses read.
ENVIRONMENT = $(if $(filter services,$(PROFILE)),deploy/services start && . $(SERVICES)/env &&)
# What torch and the libraries below it may use of this CPU. On ARM only torch's own variable says anything.
CPU ?= native
AS_avx2 := ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
AS_default := ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
# Tests start many processes, each of which would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup attacks fuzz demo demo-seeds smoke bench test test-slow test-torch test-services services services-stop check browser clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(BIN)/.ready  ## Make .venv from the pinned dependencies, once

$(BIN)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,reasoning]'
	touch $@

demo: setup  ## Show a model learning from its users (SEED=1, PROFILE=embedded or services)
	$(ENVIRONMENT) $(BIN)/millrace demo --seed $(SEED) --profile $(PROFILE)

smoke: setup  ## Half a minute of the demo: every process, nothing lost (PROFILE as above)
	$(ENVIRONMENT) $(BIN)/millrace demo --smoke --seed $(SEED) --profile $(PROFILE)

demo-seeds: setup  ## Run the demo for seeds 1 to 5 and report the worst
	$(BIN)/millrace demo-seeds

test: setup  ## Run the tests that need no server, no GPU, no browser and no patience
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/end_to_end -m "not services and not gpu and not browser and not slow"
	@echo "not run here: tests marked services, gpu, browser, slow"

test-torch: setup  ## Run those that touch torch as another CPU would (CPU=native, avx2 or default)
	@$(AS_$(CPU)) $(BIN)/python -c 'import torch; print("torch computes with", torch.backends.cpu.get_cpu_capability())'
	$(AS_$(CPU)) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "torch and not services and not gpu and not browser and not slow"

test-slow: setup  ## Run those that take longer and need no server: every process killed, under load
	$(BIN)/pytest -m "slow and not services and not gpu and not browser"

fuzz: setup  ## Send 5,000 requests made from the served OpenAPI document (CASES=5000): no answer may be a 5xx
	MILLRACE_CASES=$(CASES) $(BIN)/pytest -n0 tests/integration/test_http_cases.py

attacks: setup  ## Try every attack that is known; nothing may get through
	$(BIN)/python -m benchmarks.attacks

services: setup  ## Start a Kafka broker, PostgreSQL, Redis and an S3 server on this machine
	deploy/services start

services-stop:  ## Stop them; their data stays in runs/services
	deploy/services stop

test-services: services  ## Run the tests that need those servers
	. $(SERVICES)/env && $(BIN)/pytest -m services -rs

bench: setup services  ## Run every benchmark and write benchmarks/results (about half an hour)
	. $(SERVICES)/env && for name in gateway feedback log engine deltas swap rewards rewards.sandbox; do $(BIN)/python -m benchmarks.$$name || exit 1; done

browser: setup  ## Run the page test; it is skipped without Chromium
	$(BIN)/pytest -m browser -rs

check: setup  ## Format, lint, types, layers, one meaning per name, no dead module, torch where it belongs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy .
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet --durations=0 tests/unit/test_architecture.py tests/unit/test_import_rules.py tests/unit/test_alive.py

clean:  ## Stop the servers, remove the environment and all runs
	if [ -d runs/services ]; then deploy/services stop; fi
	rm -rf .venv runs
