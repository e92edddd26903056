# SPDX-License-Identifier: Apache-2.0
# The commands of daily work; each does the set-up that it needs. tools/test.py has the steps of `make test`.

PYTHON ?= python3
CLANG_FORMAT ?= clang-format-16
VENV_PYTHON := .venv/bin/python
INSTALLED := .venv/.headrace-installed

.PHONY: help setup build install test test-long test-gpu one demo demo-weights format lint tidy wheel clean

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup:  ## Install the missing Debian packages and the Python environment .venv
	@tools/setup.sh

build: setup  ## Build the release into build/release: library, backends, command, examples, benchmarks
	@cmake --preset release >/dev/null || cmake --preset release
	@cmake --build --preset release --target headrace_product

install: $(INSTALLED)  ## Install the Python package into .venv

# The file has the time of the last installation; a newer input of the wheel makes a new one.
WHEEL_INPUTS := $(shell find include src backends bindings cli kernels tools/probe_plugin tools/device_code.py python cmake CMakeLists.txt layers.toml \
  pyproject.toml README.md -type f -not -name '*.pyc' 2>/dev/null)
$(INSTALLED): $(WHEEL_INPUTS) | setup
	@$(PYTHON) tools/test.py --install

test:  ## Run all checks and tests of continuous integration, and print their numbers
	@$(PYTHON) tools/test.py

test-long:  ## Run the tests of hours: long fuzzing, the second compiler, clang-tidy on every source, soaks
	@$(PYTHON) tools/test.py --long

test-gpu:  ## Test and measure on a machine with GPUs: make test-gpu ARGS="--nixl FOLDER"
	@$(PYTHON) tools/test_gpu.py $(ARGS)

one:  ## Run the tests whose names match: make one T=agent
	@$(PYTHON) tools/test.py --one '$(T)'

demo: install  ## Let two workers write a text: make demo ARGS="--prompt 'In the beginning' --check"
	@.venv/bin/headrace demo $(ARGS)

demo-weights: install  ## Move a model's weights from one process to two others, over shm and tcp
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(VENV_PYTHON) tools/demo.py $(ARGS)

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh')

format: setup  ## Format the C++ and Python sources
	@$(CLANG_FORMAT) -i $(SOURCES)
	@$(VENV_PYTHON) -m ruff check --quiet --select I --fix
	@$(VENV_PYTHON) -m ruff format --quiet

lint: setup  ## Check layout, types, layers, licence lines, shell scripts, commit titles
	@$(VENV_PYTHON) tools/lint.py

tidy: setup  ## Run clang-tidy on every source
	@$(PYTHON) tools/test.py --stages setup,tidy-all

wheel: setup  ## Build a wheel into dist/
	@$(VENV_PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean:  ## Remove build/ and dist/; the environment .venv stays
	@rm -rf build dist
