# Everything a person or a CI machine does with this folder. Needs make and Python 3.11 to 3.13, nothing else.
PYTHON ?= python3
VENV ?= .venv
CREW ?= demo
PYTEST_ARGS ?=
SIZE ?= 200
SEED ?=

PY := $(VENV)/bin/python
DEMO_EXTRAS := $(if $(filter crewai,$(CREW)),crewai,service)

.PHONY: help demo up down test chaos lint clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.has-$(DEMO_EXTRAS) ## the whole pattern on real Airflow, once, with a scripted reviewer (CREW=crewai: a real CrewAI crew)
	@$(PY) -m scripts.demo --crew $(CREW)

up: $(VENV)/.has-$(DEMO_EXTRAS) ## Airflow and the crew service, to look around; Ctrl-C or `make down` stops them
	@$(PY) -m scripts.up --crew $(CREW)

down: ## stop what `make up` started
	@test ! -x $(PY) || $(PY) -m scripts.down

test: $(VENV)/.has-dev,crewai ## all tests (PYTEST_ARGS="-k word" for some)
	@$(PY) -m pytest --numprocesses 2 --dist loadgroup $(PYTEST_ARGS)

chaos: $(VENV)/.has-dev,crewai ## up to 10 minutes in which all that can fail fails (SIZE=200, SEED=number)
	@CREW_TESTS_POSTGRES=$${CREW_TESTS_POSTGRES-$$($(PY) -m scripts.find_postgres)} CREW_CHAOS_SIZE=$(SIZE) CREW_CHAOS_SEED=$(SEED) \
		$(PY) -m pytest -s tests/system/crashes/test_chaos.py $(PYTEST_ARGS)

lint: $(VENV)/.has-dev,crewai ## ruff and mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

clean: down ## remove what make made
	@rm -rf $(VENV) .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit("Python 3.11, 3.12 or 3.13 is needed and %s is %d.%d; say which: make PYTHON=python3.12 ..." % (sys.executable, *v))'
	@$(PYTHON) -m venv $(VENV)

# A stamp for each set of extras. uv is a fast installer; where it cannot be had or cannot reach an index, pip does it.
$(VENV)/.has-%: pyproject.toml | $(PY)
	@echo "Installing the package with [$*] into $(VENV) (once; some minutes unless packages are cached) ..."
	@{ $(PY) -m pip install --quiet uv && $(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[$*]'; } \
		|| $(PY) -m pip install --quiet --editable '.[$*]'
	@touch '$@'
