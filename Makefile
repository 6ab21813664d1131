# `make demo` shows the product, `make test` is the whole gate. Nothing is installed into the system's Python.
PY ?= python3
UV_VERSION := 0.13.8
UV := .uv/bin/uv
BIN := .venv/bin
PINS := $(wildcard requirements/*.txt)
COMPILE = $(UV) pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate
SYNC = VIRTUAL_ENV=.venv $(UV) pip install -q
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: .venv/.ready ## the environment in .venv, with .venv/bin/twokeys
	@:

$(UV):
	@$(PY) -c 'import sys; sys.exit("Twokeys needs Python 3.11 or newer; say which one with make PY=..." if sys.version_info < (3, 11) else 0)'
	@echo "fetching uv $(UV_VERSION)"
	@rm -rf .uv
	@if $(PY) -m venv .uv >/dev/null 2>&1; then .uv/bin/python -m pip -q install 'uv==$(UV_VERSION)'; \
	else $(PY) -m pip -q install --target .uv/lib 'uv==$(UV_VERSION)' && mkdir -p .uv/bin && cp .uv/lib/bin/uv $(UV); fi

# The opa wheel comes last, with its Python bound overridden, and nothing may sync after it: a sync would remove it.
.venv/.ready: $(PINS) pyproject.toml | $(UV)
	@echo "preparing .venv"
	@test -x $(BIN)/python || $(UV) venv -q --allow-existing --python $(PY) .venv
	@$(SYNC) --require-hashes -r requirements/test.txt
	@$(SYNC) --python-version 3.14 --no-deps --require-hashes -r requirements/opa.txt
	@$(SYNC) --no-deps --no-build-isolation -e .
	@touch $@

pins: $(UV) ## compile the requirement files again, hashes and no host names
	@$(COMPILE) --python-version 3.11 pyproject.toml --extra demo --group test --group dev --group browser -o requirements/test.txt
	@$(COMPILE) --python-version 3.11 -c requirements/test.txt pyproject.toml -o requirements/runtime.txt
	@$(COMPILE) --python-version 3.11 -c requirements/test.txt requirements/bench.in -o requirements/bench.txt
	@$(COMPILE) --python-version 3.14 --no-deps requirements/opa.in -o requirements/opa.txt

.PHONY: help setup pins
