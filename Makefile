# Everything a contributor runs. `make` alone lists the targets.

PYTHON ?= python3
# Many tests wait, for processes, servers and disks: so there are more of these than cores.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 9 ? n : 9)))
SECONDS ?= 60
PYTEST_ARGS ?=
JQUEUE ?= ../jqueue
PAGES ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
CODE := $(wildcard src tests benchmarks examples docs/images)
PURE := queues/lineage retry $(addprefix rules/,additions counts decide evolve insertion lines operations picking records retention \
	sorted_keys state ticks transaction transitions)
QUICK := tests/unit tests/tasks tests/memory tests/model/test_rollback.py tests/typing/test_at_run_time.py \
	$(addprefix tests/conformance/test_,memory.py sqlite.py statements.py)
# One kind of queue, and not the statements that take 100,000 jobs to show.
QUICK_ONES := (direct or not (TestMemory or TestSqlite)) and not (any_number_of_queues \
	or nothing_due_cost or hot_queue or one_record_after or newly_opened_store)
# What the benchmarks share, and the one that needs a commit to compare with.
NO_BENCHMARKS := $(addprefix benchmarks/,contenders.py pairs.py report.py)
comma := ,
empty :=
space := $(empty) $(empty)
PURE_FILES := $(subst $(space),$(comma),$(PURE:%=src/casque/%.py))

# Where Python is told to write no bytecode, every process would compile again all that an editable
# install left uncompiled, and every process of pytest all tests. So `install` compiles, and pytest
# keeps what it compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist worksteal

# A stamp is written last, so a step that was interrupted is done again from its start. MADE is
# put aside while pip works: if pip is killed, the next run makes the whole environment again.
MADE := $(VENV)/.made
UNSURE := $(VENV)/.unsure
BASE := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
COLLECTED := $(VENV)/.collected

define install
	@mv $(MADE) $(UNSURE)
	@$(PIP) install --editable '$(1)'; status=$$?; mv $(UNSURE) $(MADE); exit $$status
	@$(BIN)/python -m compileall -q src/casque
endef

# An environment is bound to its Python and to this folder (scripts and the editable install
# hold absolute paths). If either has gone, forget it and make it again.
ifneq ($(wildcard $(MADE)),)
$(shell [ "$$(cat $(MADE))" = "$(CURDIR)" ] && $(BIN)/python -c 'import pip' 2>/dev/null \
	|| rm -f $(MADE) $(BASE) $(DEV) $(BENCH) $(COLLECTED))
endif

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test quick servers check format bench torture jqueue coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(BASE) ## see jobs enqueued, worked, retried and buried, by two worker processes
	@$(BIN)/queuectl demo

test: servers $(COLLECTED) ## run the tests, in at most 10 minutes on 2 cores (PYTEST_ARGS="-k lease")
	@CASQUE_TEST_TIMETABLE=1 $(PYTEST) -n $(WORKERS) $(PYTEST_ARGS)

quick: $(DEV) ## run the rules, the tasks, and two stores through one kind of queue (a minute)
	@$(PYTEST) -n $(WORKERS) -k '$(QUICK_ONES)' $(QUICK) $(PYTEST_ARGS)

servers: $(DEV) ## install the servers that the tests run against, once per user
	@$(BIN)/python -m tests.servers

check: $(DEV) ## check format, lint, types and the direction of imports
	$(BIN)/python -m ruff format --check $(CODE)
	$(BIN)/python -m ruff check $(CODE)
	$(BIN)/python -m mypy $(CODE)
	$(BIN)/lint-imports --no-logo

format: $(DEV) ## format the code and apply the safe fixes
	$(BIN)/python -m ruff format $(CODE)
	$(BIN)/python -m ruff check --fix $(CODE)

bench: $(BENCH) ## run every benchmark, at the sizes whose limits we state (a quarter of an hour)
	@set -e; for script in $(sort $(filter-out $(NO_BENCHMARKS),$(wildcard benchmarks/*.py))); do \
		echo "== $$script"; $(BIN)/python $$script; \
	done; \
	echo "== benchmarks/depth.py --store sqlite"; $(BIN)/python benchmarks/depth.py --store sqlite

torture: servers ## run the tests under real and simulated faults for as long as you say (SECONDS=60)
	@seed=$${SEED:-$$(date +%y%m%d%H%M%S)0000}; echo "simulating from seed $$seed on (SEED=$$seed)"; \
		CASQUE_TORTURE_SECONDS=$(SECONDS) CASQUE_TORTURE_SEED=$$seed \
		CASQUE_MODEL_EXAMPLES=$$(($(SECONDS) / 10 + 3)) $(PYTEST) \
		tests/torture tests/model/test_machine.py \
		-rP --timeout=$$(($(SECONDS) * 2 + 120)) $(PYTEST_ARGS)

jqueue: $(DEV) ## run jqueue's own tests and examples on casque.compat.jqueue (JQUEUE=a clone of jqueue)
	@$(BIN)/python -m tests.compat.upstream $(JQUEUE) $(PAGES)

coverage: servers ## measure branch coverage; the pure modules must reach 100%
	@$(PYTEST) -n $(WORKERS) --cov --cov-report= --cov-fail-under=0 $(PYTEST_ARGS)
	@$(BIN)/python -m coverage report --include='$(PURE_FILES)' --fail-under=100
	@$(BIN)/python -m coverage report

clean: ## remove the environment, the caches and what was built
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "casque needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@echo "$(CURDIR)" > $@

$(BASE): $(MADE) pyproject.toml
	@echo "installing casque"
	$(call install,.)
	@touch $@

$(BENCH): $(MADE) pyproject.toml
	@echo "installing casque and what it is measured against"
	$(call install,.[bench])
	@touch $(BASE) $@

$(DEV): $(MADE) pyproject.toml
	@echo "installing casque and its development tools"
	$(call install,.[dev])
	@touch $(BASE) $@

# In a new environment, one process compiles the tests for all processes of pytest. Each of them
# would do it by itself, which takes them a minute of processor time. A mistake is shown by the run.
$(COLLECTED): $(DEV)
	@$(PYTEST) -n 0 --collect-only -qq > /dev/null 2>&1 || true
	@touch $@
