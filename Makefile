# All commands for development and CI. They need only make and Python 3.11 to 3.13. The provider itself supports later
# versions of Python; its development does not, because CrewAI, and therefore the service, excludes Python 3.14.
PYTHON ?= python3
VENV ?= .venv
SERVICE_VENV ?= .venvs/service
CREW ?= demo
PYTEST_ARGS ?=
SIZE ?=
SEED ?=
AIRFLOW ?=
WITH ?=
ROWS ?=

# Tests and Airflow start many processes, each of which would otherwise compile everything it imports.
unexport PYTHONDONTWRITEBYTECODE
export MYPY_CACHE_DIR := $(CURDIR)/.mypy_cache# also for a test that runs mypy elsewhere

PY := $(VENV)/bin/python
PAGES := docs/*.md *.md service/README.md benchmarks/README.md
# Installers accept a pre-release (3.4.0b2) only of a package that is named explicitly.
CORE := $(if $(findstring b,$(AIRFLOW))$(findstring rc,$(AIRFLOW)),'apache-airflow-core==$(AIRFLOW)' 'apache-airflow-task-sdk==$(AIRFLOW:3.%=1.%)')
RELEASE := $(if $(AIRFLOW),'apache-airflow==$(AIRFLOW)' $(CORE))
comma := ,
TEST_EXTRAS := $(if $(filter 2.%,$(AIRFLOW)),dev,dev$(comma)crewai)# Airflow 2 restricts a package that CrewAI needs
DEMO_EXTRAS := $(if $(filter crewai,$(CREW)),crewai,service)

.PHONY: help demo up down check quick test service-test long guard bench bench-full chaos cluster-test crewai-matrix test-matrix lint lint-provider lint-service docs mutants faults clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.has-$(DEMO_EXTRAS) ## run the whole pattern once on a real Airflow, with a scripted reviewer (CREW=crewai: a real CrewAI crew)
	@$(PY) -m scripts.demo --crew $(CREW)

up: $(VENV)/.has-$(DEMO_EXTRAS) ## start Airflow and the crew service to try them out; Ctrl-C or `make down` stops them
	@$(PY) -m scripts.up --crew $(CREW)

down: ## stop what `make up` started
	@test ! -x $(PY) || $(PY) -m scripts.down

check: ## run before each commit: lint and quick
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(VENV)/.has-$(TEST_EXTRAS) ## run the tests that neither start processes nor wait
	@$(PY) -m pytest --numprocesses 6 --dist loadgroup -m "not slow and not waits and not long" --hypothesis-profile=quick \
		--ignore=tests/cluster --ignore=tests/system --ignore=tests/service/crewai $(PYTEST_ARGS)

test: $(VENV)/.has-dev,crewai ## run all tests on one Airflow, except those of `make long` (PYTEST_ARGS="-k word" selects some)
	@$(PY) -m pytest --numprocesses 6 --dist loadgroup --no-loadscope-reorder -m "not long" $(PYTEST_ARGS)

# If one fails, the others still run. pytest returns 5 if no test is marked.
long: $(VENV)/.has-dev,crewai ## run everything that takes longer: tests marked long, cluster-test, chaos, crewai-matrix, faults, mutants
	@$(PY) -m pytest --numprocesses 2 --dist loadgroup -m long $(PYTEST_ARGS) || test $$? = 5 || failed=1; \
		$(MAKE) --no-print-directory --keep-going cluster-test chaos crewai-matrix faults mutants && test -z "$$failed"

service-test: $(SERVICE_VENV)/.has-dev ## run the service's tests without Airflow and CrewAI (PYTHON=python3.10 or WITH='sqlalchemy<2', and SERVICE_VENV=.venvs/other)
	@$(SERVICE_VENV)/bin/python -m pytest --numprocesses 2 --dist loadgroup --ignore=tests/service/crewai tests/service $(PYTEST_ARGS)

guard: $(VENV)/.has-dev,crewai ## fail if polls, DAG files, statuses or large outputs have become 10% more expensive; takes about a minute
	@$(PY) -m benchmarks.guard

bench: $(VENV)/.has-dev,bench ## measure the cost of waits and DAG files, alongside other providers: small sizes, about two minutes
	@$(PY) -m benchmarks

bench-full: $(VENV)/.has-dev,bench ## run the same with 10,000 waits, more turns and the chart for docs/performance.md
	@$(PY) -m benchmarks --full

cluster-test: $(VENV)/.has-dev,crewai ## test CeleryExecutor and three crew services while their processes are killed, up to 25 minutes (SIZE=300, SEED=number)
	@CREW_CLUSTER_SIZE=$(or $(SIZE),300) CREW_CLUSTER_SEED=$(SEED) $(PY) -m pytest -s tests/cluster $(PYTEST_ARGS)

chaos: $(VENV)/.has-dev,crewai ## run for up to 15 minutes while everything that can fail does (SIZE=100, SEED=number)
	@CREW_CHAOS_SIZE=$(or $(SIZE),100) CREW_CHAOS_SEED=$(SEED) $(PY) -m pytest -s tests/system/crashes/test_chaos.py tests/system/crashes/test_chaos_of_steps.py $(PYTEST_ARGS)

crewai-matrix: $(VENV)/.has-dev,crewai ## test the crew service with several CrewAI versions, from the oldest supported to the newest
	@$(PY) -m scripts.crewai_matrix

# Each cell has its own environment, so the Airflow in this one is not replaced.
test-matrix: RELEASE :=
test-matrix: $(VENV)/.has-matrix ## run tests and one DAG on each supported Airflow and Python; update docs/compatibility.md (AIRFLOW=3.4.0: only that one)
	@AIRFLOW=$(AIRFLOW) $(VENV)/bin/nox

lint: lint-service lint-provider ## run ruff and mypy

lint-provider: $(VENV)/.has-dev,crewai
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

lint-service: $(VENV)/.has-dev,crewai # has a cache of its own, because both may run at the same time
	@$(PY) -m mypy --config-file service/pyproject.toml --cache-dir $(MYPY_CACHE_DIR)/service

docs: $(VENV)/.has-docs ## check spelling and style of the pages, and build a site in .site with an API reference; warnings are errors
	@$(VENV)/bin/codespell airflow_crew_provider service/crew_service example_dags --skip '*.css,*.js,*.pyc'
	@$(VENV)/bin/codespell --dictionary - --dictionary scripts/words.txt $(PAGES)
	@$(VENV)/bin/proselint check --config scripts/proselint.json $(PAGES)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

mutants: $(VENV)/.has-mutation,crewai ## mutate the pure code line by line, and list the mutants that no test detects (scripts/mutants.md)
	@$(PY) -m scripts.mutation_run
	@$(PY) -m scripts.mutants

faults: $(VENV)/.has-dev,crewai ## seed a fault for each row of the fault matrix, and check that a test of the row fails (ROWS="A37 S1" selects some)
	@$(PY) -m scripts.seeded_faults $(ROWS)

clean: down ## remove everything that make created
	@rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis .nox .site mutants

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("Python 3.11, 3.12 or 3.13 is required, but %s is %d.%d; choose one: make PYTHON=python3.12 ..." % (sys.executable, *v))'
	@$(PYTHON) -m venv $(VENV)

# A stamp for each set of extras. uv installs faster; if it is unavailable or cannot reach an index, pip is used.
$(VENV)/.has-%: pyproject.toml service/pyproject.toml | $(PY)
	@echo "Installing both packages with [$*] into $(VENV) (only once; takes a few minutes unless the packages are cached) ..."
	@{ $(PY) -m pip install --quiet uv && $(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[$*]' --editable ./service $(RELEASE); } \
		|| $(PY) -m pip install --quiet --editable '.[$*]' --editable ./service $(RELEASE)
	@touch '$@'

$(SERVICE_VENV)/.has-dev: service/pyproject.toml
	@$(PYTHON) -m venv $(SERVICE_VENV)
	@{ $(SERVICE_VENV)/bin/python -m pip install --quiet uv && \
		$(SERVICE_VENV)/bin/uv pip install --quiet --python $(SERVICE_VENV)/bin/python --editable './service[dev,postgresql]' $(if $(WITH),'$(WITH)'); } \
		|| $(SERVICE_VENV)/bin/python -m pip install --quiet --editable './service[dev,postgresql]' $(if $(WITH),'$(WITH)')
	@touch '$@'
