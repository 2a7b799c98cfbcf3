PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
CASES ?= 5000
PROFILE ?= embedded
# millrace; or vllm: two vLLM servers for CPUs, in .vllm (`make vllm`) or in the environment of MILLRACE_VLLM_PYTHON.
ENGINE ?= millrace
# Empty: the demo trains all weights; else the rank of the LoRA adapter that it trains beside them.
ADAPTER ?=
# Workers of pytest. Some tests wait, so three workers keep two cores busy; of the slow ones, and of what needs servers, most wait, so four do.
WORKERS ?= 3
SERVICES := $(or $(MILLRACE_SERVICES),runs/services)
# PROFILE=services starts the servers if necessary, and reads their addresses.
# The S3 server among them is of the test packages; a demo without them needs fewer.
NEEDED = $(if $(filter services,$(PROFILE)),setup,$(BIN)/.demo) $(filter vllm,$(ENGINE))
ENVIRONMENT = $(if $(filter services,$(PROFILE)),deploy/services start && . $(SERVICES)/env &&)
# Instruction sets that torch and its libraries may use. On ARM only torch's own variable has an effect.
CPU ?= native
AS_avx2 := ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
AS_default := ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
# Where what tests compare hangs on the order in which a CPU sums; others load torch too.
SUMS := $(addprefix tests/unit/,policy services/engine pipelines/training benchmarks)
# Tests that read the code itself: `make check` runs them.
CHECKS := $(patsubst %,tests/unit/test_%.py,architecture import_rules alive ceilings docs manual_pages plain_english repository)
# Tests start many processes. Without bytecode files each would compile all its imports.
export PYTHONDONTWRITEBYTECODE :=
# Arrays of tests are small: threads of numpy's BLAS would spin, on cores that other workers need.
test test-torch test-slow: export OPENBLAS_NUM_THREADS := 1

.PHONY: help setup vllm test-vllm test-gpu gpu gpu-packages attacks fuzz demo demo-agent demo-takeover smoke bench test test-slow test-end-to-end test-torch test-services services services-stop check types rules browser clean clients helm separate-homes containers

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(BIN)/.ready  ## Make .venv from the pinned dependencies, once: everything

$(BIN)/.ready: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" deploy/environment all

$(BIN)/.demo: pyproject.toml constraints.txt
	PYTHON="$(PYTHON)" deploy/environment demo

vllm:  ## Make .vllm: vLLM for CPUs in an environment of its own, about 6 GB, once; CUDA=1: for GPUs
	deploy/vllm$(if $(filter-out 0,$(CUDA)), cuda)

demo: $(NEEDED)  ## Show a model learning from its users (SEED=1, PROFILE=embedded or services, ENGINE=millrace or vllm, ADAPTER=8: LoRA)
	$(ENVIRONMENT) $(BIN)/millrace demo --seed $(SEED) --profile $(PROFILE) --engine $(ENGINE)$(if $(ADAPTER), --adapter $(ADAPTER))

smoke: $(NEEDED)  ## Run the demo for half a minute: every process, nothing lost (PROFILE, ENGINE, ADAPTER as above)
	$(ENVIRONMENT) $(BIN)/millrace demo --smoke --seed $(SEED) --profile $(PROFILE) --engine $(ENGINE)$(if $(ADAPTER), --adapter $(ADAPTER))

demo-agent: $(NEEDED)  ## Show an agent with tools learning from how its sessions end (SEED=1, PROFILE as above)
	$(ENVIRONMENT) $(BIN)/millrace demo-agent --seed $(SEED) --profile $(PROFILE)

demo-takeover: $(NEEDED)  ## Show an own model learning from a provider's log, and taking over (SEED=1, PROFILE as above)
	$(ENVIRONMENT) $(BIN)/millrace demo-takeover --seed $(SEED) --profile $(PROFILE)

test: setup  ## Run the fast tests: they need no server, no GPU and no browser
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/end_to_end $(CHECKS:%=--ignore %) -m "not services and not gpu and not browser and not clients and not slow and not vllm"
	@echo "not run here: tests marked services, gpu, browser, clients, slow, vllm; what make check runs"

test-torch: setup  ## Run the torch tests with the instructions of another CPU (CPU=native, avx2 or default)
	@$(AS_$(CPU)) $(BIN)/python -c 'import torch; print("torch computes with", torch.backends.cpu.get_cpu_capability())'
	$(AS_$(CPU)) $(BIN)/pytest -n $(WORKERS) --dist worksteal $(SUMS) -m "torch and not services and not gpu and not browser and not clients and not slow and not vllm"

test-slow: setup  ## Run the slow tests that need no server: simulations, crashes, sandboxes, the wheel
	$(BIN)/pytest -n 4 --dist worksteal --ignore tests/end_to_end -m "slow and not services and not gpu and not browser and not clients and not vllm"

test-end-to-end: setup  ## Run the slow tests of whole products: demo, replicas, kills, one at a time
	$(BIN)/pytest -n0 tests/end_to_end -m "slow and not services and not gpu and not browser and not clients and not vllm"

test-vllm: setup  ## Run the tests that need vLLM; skipped by name where `make vllm` was not run
	$(BIN)/pytest -n 2 --dist loadfile -m vllm -rs tests/integration/vllm

test-gpu: setup  ## Run the tests that need a CUDA device; skipped by name without one
	$(BIN)/pytest -n0 -m gpu -rs

# No setup: the machine with the card may have no registry. Its own Python needs torch and transformers; the rest is carried.
gpu:  ## Fill the tables of one GPU in at most 8 minutes; without one, run the script at tiny size
	$(PYTHON) -m benchmarks.gpu $(if $(shell command -v nvidia-smi),,--rehearse)

gpu-packages:  ## Download the packages that `make gpu` may carry to a machine without registries: 41 MB in runs/gpu-packages
	PYTHON="$(PYTHON)" deploy/gpu-packages

fuzz: setup  ## Send 5,000 requests generated from the OpenAPI document (CASES=5000): no 5xx allowed
	MILLRACE_CASES=$(CASES) $(BIN)/pytest -n0 tests/integration/test_http_cases.py

attacks: setup  ## Try every known attack; none may succeed
	$(BIN)/python -m tests.adversary.attacks

services: setup  ## Start a Kafka broker, PostgreSQL, Redis and an S3 server on this machine
	deploy/services start

services-stop:  ## Stop them; their data stays in runs/services
	deploy/services stop

test-services: services  ## Run the tests that need those servers
	. $(SERVICES)/env && $(BIN)/pytest -n 4 --dist loadfile -m services -rs

separate-homes: setup services  ## Run every process in a home of its own on those servers, as the Helm chart does: about a minute
	. $(SERVICES)/env && MILLRACE_SEPARATE_HOMES=1 $(BIN)/pytest -n0 -rs tests/integration/test_separate_homes.py

bench: setup services  ## Run every benchmark and write benchmarks/results (about half an hour)
	. $(SERVICES)/env && for name in gateway feedback log engine deltas swap rewards rewards.sandbox; do $(BIN)/python -m benchmarks.$$name || exit 1; done

browser: setup  ## Run the page test; it is skipped without Chromium
	$(BIN)/pytest -n 2 --dist worksteal -m browser -rs

clients: setup  ## Run unmodified clients against a started server and write docs/clients.md
	deploy/clients
	$(BIN)/pytest -n 2 --dist loadfile -m clients -rs tests/clients

helm: setup  ## Lint the Helm chart, render it, and validate what it rendered without a cluster (needs Go, once)
	deploy/helm/check
	$(BIN)/pytest -n0 -rs tests/unit/test_chart.py

containers: setup  ## Build both images, start docker-compose.yml with podman, kill each container once (Debian, as root)
	deploy/containers build
	deploy/containers alone $(BIN)/python -m tests.adversary.containers

# Types take one core as long as all the rest takes another.
check: setup  ## Format, lint, types, import rules, one meaning per name, no dead module, links, pages made of the code, plain English
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) --jobs=2 --output-sync --no-print-directory types rules

types: setup
	$(BIN)/mypy .

rules: setup
	$(BIN)/lint-imports
	$(BIN)/pytest --quiet $(CHECKS)

clean:  ## Stop the servers, remove the environment and all runs
	if [ -d runs/services ]; then deploy/services stop; fi
	rm -rf .venv .clients .helm .vllm runs
