# Builds, tests and shows overtone. `make` lists the targets.
#
# Everything built lies in target/ (cargo's and ours) and dist/ (what would be published); the environment that
# `make demo` leaves for its user is .venv. Needs Python >= 3.10 with venv, Rust and a C++ compiler; the rest, nvcc too,
# comes from PyPI and crates.io, pinned by Cargo.lock, pyproject.toml and .ci/requirements-*.txt.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
export CARGO_TARGET_DIR ?= $(CURDIR)/target
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SDIST := dist/overtone-$(VERSION).tar.gz
WHEEL := dist/overtone-$(VERSION)-cp310-abi3-manylinux_2_28_$(shell uname -m).whl

TARGET := $(CARGO_TARGET_DIR)
TOOLS := $(TARGET)/tools
TESTS := $(TARGET)/tests
# One interpreter for every build: another would make cargo build the bindings again. Its environment has nvcc too.
export PYO3_PYTHON := $(abspath $(TOOLS))/bin/python
# The kernels take a minute to compile: lints, tests and the wheel share what comes out.
export OVERTONE_KERNEL_CACHE ?= $(abspath $(TARGET))/kernels
NEXTEST := $(or $(shell command -v cargo-nextest),$(TARGET)/nextest/bin/cargo-nextest)
CARGO_HOME ?= $(HOME)/.cargo
# Tests are checked for what they call, not for how completely they are annotated.
MYPY_OF_TESTS := --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls --allow-any-generics --no-warn-return-any

SOURCES := $(shell find kernels rust python -type f -not -name '*.py[co]' -not -name '*.so' -not -path 'rust/simt/*') \
    Cargo.toml Cargo.lock pyproject.toml README.md CHANGELOG.md LICENSE
KERNELS := $(shell find kernels rust/simt -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.hpp')

.PHONY: help demo test test-rust test-python lint lint-rust lint-kernels lint-python docs-check format wheel sdist check-dist bench develop clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- use ---------------------------------------------------------------------------------------------------------

DEMO_ARCH ?= qwen3-tts-0.6b
DEMO := $(patsubst $(CURDIR)/%,%,$(TARGET))/demo/$(DEMO_ARCH)

demo: .venv/ready $(DEMO)/frames.safetensors ## Install overtone in .venv, make a checkpoint of a true architecture, predict frames.
	.venv/bin/overtone predict $(DEMO) --frames $(DEMO)/frames.safetensors --out $(DEMO)/codes.safetensors

$(DEMO)/frames.safetensors: | .venv/ready
	@mkdir -p $(@D)
	.venv/bin/overtone make-checkpoint $(@D) --arch $(DEMO_ARCH)

.venv/ready: $(WHEEL)
	@echo "== .venv: overtone with its command line"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet --force-reinstall --no-deps $(WHEEL)
	@.venv/bin/pip install --quiet '$(WHEEL)[cli]'
	@touch $@

bench: .venv/ready $(DEMO)/frames.safetensors ## Measure ms per frame on this machine, against the time that only reading the weights takes.
	.venv/bin/overtone bench $(DEMO)
	.venv/bin/python -m benchmarks.cpu_floor $(DEMO)

# --- check -------------------------------------------------------------------------------------------------------

test: test-rust test-python ## Run every test, against the wheel that the sdist builds.

test-rust: $(NEXTEST) $(TOOLS)/ready ## Run the tests and documentation examples of the Rust crates.
	$(NEXTEST) nextest run --workspace --locked
	cargo test --workspace --locked --doc

test-python: $(TESTS)/ready check-dist ## Run pytest and the docstring examples against the installed wheel.
	$(TESTS)/bin/pytest --doctest-modules --pyargs overtone tests

lint: lint-rust lint-kernels docs-check lint-python ## Check format, lints, documentation, types and the stubs of the compiled module.

lint-rust: $(TOOLS)/ready ## Check the Rust crates: rustfmt, clippy.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

lint-kernels: $(TOOLS)/ready ## Check the kernels and the C++ that tests run them under: clang-format.
	$(TOOLS)/bin/clang-format --dry-run --Werror $(KERNELS)

lint-python: $(TOOLS)/ready $(TESTS)/ready ## Check Python: ruff, mypy, and stubtest against the installed wheel.
	$(TOOLS)/bin/ruff check
	$(TOOLS)/bin/ruff format --check
	$(TESTS)/bin/mypy
	$(TESTS)/bin/mypy $(MYPY_OF_TESTS) tests
	$(TESTS)/bin/stubtest overtone._core --mypy-config-file pyproject.toml

docs-check: $(TOOLS)/ready ## Check the links in the documentation of the Rust crates.
	RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' \
	cargo doc --workspace --no-deps --locked --document-private-items

format: $(TOOLS)/ready ## Format Rust, kernels and Python, and mend what ruff can mend.
	cargo fmt --all
	$(TOOLS)/bin/clang-format -i $(KERNELS)
	$(TOOLS)/bin/ruff check --fix
	$(TOOLS)/bin/ruff format

check-dist: $(WHEEL) $(TOOLS)/ready ## Check the wheel's platform policy and what both archives hold.
	PATH="$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/python .ci/check_distributions.py $(WHEEL) $(SDIST)

# --- build -------------------------------------------------------------------------------------------------------

sdist: $(SDIST) ## Build dist/overtone-VERSION.tar.gz.

wheel: $(WHEEL) ## Build the manylinux_2_28 wheel from the sdist, into dist/.

$(SDIST): $(SOURCES) | $(TOOLS)/ready
	$(TOOLS)/bin/maturin sdist --out dist

# Zig links against the glibc that the tag promises, whatever this machine has; the wheel names no folder of this machine.
#
# Zig would also link a stack unwinder of its own into the module. A thread that Python ends with the process is unwound
# by the process's libgcc_s, which must not meet another unwinder on its way: it would crash. So libgcc_s itself is linked,
# before zig's, from a folder that holds nothing else of this machine.
#
# The sources are unpacked with the time of unpacking: with the constant time that they have in the archive, cargo would
# take crates that it built from an earlier sdist for up to date; and pip would bring back a wheel of that name from its cache.
$(WHEEL): $(SDIST)
	@echo "== the wheel, from $(SDIST): this compiles everything once"
	@rm -rf $(TARGET)/sdist $(TARGET)/libgcc
	@mkdir -p $(TARGET)/sdist $(TARGET)/libgcc
	@ln -s "$$($(CXX) -print-file-name=libgcc_s.so.1)" $(TARGET)/libgcc/
	@tar -xzmf $(SDIST) -C $(TARGET)/sdist
	PATH="$(TOOLS)/bin:$$PATH" \
	MATURIN_PEP517_ARGS='--zig --compatibility manylinux_2_28' \
	RUSTFLAGS='--remap-path-prefix=$(CARGO_HOME)=cargo -L native=$(TARGET)/libgcc -l dylib:+verbatim=libgcc_s.so.1' \
	$(TOOLS)/bin/pip wheel --verbose --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist $(TARGET)/sdist/overtone-$(VERSION)

develop: .venv/ready .ci/requirements-tests.txt $(TOOLS)/ready ## Install overtone editable in .venv with the test tools, for quick edits: .venv/bin/pytest.
	@.venv/bin/pip install --quiet -r .ci/requirements-tests.txt
	PATH="$(TOOLS)/bin:$$PATH" VIRTUAL_ENV=$(CURDIR)/.venv $(TOOLS)/bin/maturin develop

# nvcc's wheels are pinned where pip reads them for every build: in pyproject.toml.
$(TOOLS)/ready: .ci/requirements-tools.txt pyproject.toml
	@echo "== tools: $(TOOLS)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("error: Python 3.10 or newer is needed; name one with make PYTHON=...")'
	@$(PYTHON) -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/pip install --quiet -r $< -r <(sed -n 's/^ *"\(nvidia-[^"]*\)".*/\1/p' pyproject.toml)
	@touch $@

$(TESTS)/ready: $(WHEEL) .ci/requirements-tests.txt
	@echo "== a fresh environment with the wheel: $(TESTS)"
	@$(PYTHON) -m venv --clear $(TESTS)
	@$(TESTS)/bin/pip install --quiet -r .ci/requirements-tests.txt '$(WHEEL)[cli]'
	@touch $@

$(TARGET)/nextest/bin/cargo-nextest:
	@echo "== cargo-nextest is not installed: building it in $(TARGET)/nextest"
	cargo install cargo-nextest --locked --version 0.9.143 --root $(TARGET)/nextest

clean: ## Remove everything built.
	rm -rf $(TARGET) dist .venv python/overtone/_core*.so
