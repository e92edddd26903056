# SPDX-License-Identifier: Apache-2.0
# The few commands of daily work; each does the set-up that it needs. What `make test` runs stands in tools/test.py.

PYTHON ?= python3
CLANG_FORMAT ?= clang-format-16
VENV_PYTHON := .venv/bin/python
INSTALLED := .venv/.headrace-installed

.PHONY: help setup build install test test-long test-gpu one demo demo-weights format lint tidy wheel clean

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup:  ## Install what is missing: Debian packages, the Python environment .venv
	@tools/setup.sh

build: setup  ## Build as shipped into build/release: library, plugins, command, examples, benchmarks
	@cmake --preset release >/dev/null || cmake --preset release
	@cmake --build --preset release --target headrace_product

install: $(INSTALLED)  ## Install the Python package into .venv

# The file is as old as the last installation; anything newer that goes into the wheel makes another.
WHEEL_INPUTS := $(shell find include src backends bindings cli kernels tools/probe_plugin tools/device_code.py python cmake CMakeLists.txt layers.toml \
  pyproject.toml README.md -type f -not -name '*.pyc' 2>/dev/null)
$(INSTALLED): $(WHEEL_INPUTS) | setup
	@$(PYTHON) tools/test.py --install

test:  ## Run everything that continuous integration runs, and count it
	@$(PYTHON) tools/test.py

test-long:  ## Run what takes hours: long fuzzing, the second compiler, clang-tidy on everything, soaks
	@$(PYTHON) tools/test.py --long

test-gpu:  ## Test and measure on a machine with GPUs: make test-gpu ARGS="--nixl FOLDER"
	@$(PYTHON) tools/test_gpu.py $(ARGS)

one:  ## Run the tests whose names match: make one T=agent
	@$(PYTHON) tools/test.py --one '$(T)'

demo: install  ## Two workers write a text together: make demo ARGS="--prompt 'In the beginning' --check"
	@.venv/bin/headrace demo $(ARGS)

demo-weights: install  ## Move a model's weights from one process to two others, over shm and over tcp
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(VENV_PYTHON) tools/demo.py $(ARGS)

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh')

format: setup  ## Lay out the C++ and Python sources
	@$(CLANG_FORMAT) -i $(SOURCES)
	@$(VENV_PYTHON) -m ruff check --quiet --select I --fix
	@$(VENV_PYTHON) -m ruff format --quiet

lint: setup  ## Check layout, types, layers, licence lines, shell scripts, commit titles
	@$(VENV_PYTHON) tools/lint.py

tidy: setup  ## Run clang-tidy on every source
	@$(PYTHON) tools/test.py --stages setup,dev-build,tidy-all

wheel: setup  ## Build a wheel into dist/
	@$(VENV_PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean:  ## Remove what was built (the environment .venv stays)
	@rm -rf build dist
