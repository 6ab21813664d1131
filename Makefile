# `make demo` shows the product, `make test` is the whole gate. Nothing is installed into the system's Python.
PY ?= python3
UV_VERSION := 0.13.8
UV := .uv/bin/uv
BIN := .venv/bin
PINS := $(wildcard requirements/*.txt)
COMPILE = $(UV) pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate $(if $(UPGRADE),--upgrade)
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
	else $(PY) -m pip -q install --root-user-action=ignore --target .uv/lib 'uv==$(UV_VERSION)' && mkdir -p .uv/bin && cp .uv/lib/bin/uv $(UV); fi

# The opa wheel comes last, with its Python bound overridden, and nothing may sync after it: a sync would remove it.
.venv/.ready: $(PINS) pyproject.toml | $(UV)
	@echo "preparing .venv"
	@test -x $(BIN)/python || $(UV) venv -q --allow-existing --python $(PY) .venv
	@$(SYNC) --require-hashes -r requirements/test.txt
	@$(SYNC) --python-version 3.14 --no-deps --require-hashes -r requirements/opa.txt
	@$(SYNC) --no-deps --no-build-isolation -e .
	@touch $@

demo: setup ## the product on this machine; AUTO=1 plays the people too and verifies the result
	@$(BIN)/twokeys demo $(if $(AUTO),--auto)

test: setup chromium doubles ## the whole gate; LAYERS="mypy house flow" runs some of it
	@$(BIN)/python -m tests.house.gate $(LAYERS)

deep: setup .venv/.deep ## the long suites: many more examples, the journal's model (needs node), mutants of the journal
	@$(BIN)/python -m tests.house.gate --deep
	@echo "== mutants of engine/journal"; $(BIN)/python -m tests.spec.mutants

.venv/.deep: requirements/deep.txt .venv/.ready
	@$(SYNC) --require-hashes -r requirements/deep.txt
	@touch $@

lint: setup ## ruff, format, mypy and the house rules
	@$(BIN)/python -m tests.house.gate ruff format mypy house

format: setup ## let ruff put the code into shape
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

verifier: setup ## generate the one-file verifier again from the engine's modules
	@$(BIN)/python -m engine.ledger.onefile > governance/web/static/verify.py.new && mv governance/web/static/verify.py.new governance/web/static/verify.py

events: setup ## write docs/events.md from the catalogue of entries
	@$(BIN)/python -m tests.house.events > docs/events.md.new && mv docs/events.md.new docs/events.md

rooms: setup ## write the map of rooms into README.md from the duties of the modules
	@$(BIN)/python -m tests.house.rooms

bench: setup .venv/.bench ## benchmarks; each prints ratios measured in one run
	@set -e; for file in $(wildcard bench/*.py); do echo "== $$file"; $(BIN)/python $$file; done

.venv/.bench: requirements/bench.txt .venv/.ready
	@$(SYNC) --require-hashes -r requirements/bench.txt
	@touch $@

# Slacks that somebody else wrote (tests/contract/doubles), from the lock file alone. Without node their tests are skipped and say so.
DOUBLES := .node/doubles
doubles:
	@if ! command -v npm >/dev/null; then echo "no npm here: the tests against other Slacks are skipped"; \
	elif ! cmp -s tests/contract/doubles/package-lock.json $(DOUBLES)/.ready; then \
	  echo "installing the doubles of Slack"; mkdir -p $(DOUBLES); cp tests/contract/doubles/package.json tests/contract/doubles/package-lock.json $(DOUBLES)/; \
	  (cd $(DOUBLES) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null) && cp $(DOUBLES)/package-lock.json $(DOUBLES)/.ready; fi

# Debian's browser for tests/browser, with the fonts that pages and cards need to be readable.
EMOJI := /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf
chromium:
	@if test "$$(id -u)" = 0 && ! { test -x /usr/bin/chromium && test -e $(EMOJI); }; then \
	  echo "installing chromium"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get -qq -o Acquire::Retries=3 update && apt-get -qq -o Acquire::Retries=3 install -y --no-install-recommends \
	    chromium fonts-liberation fonts-noto-color-emoji >/dev/null; fi
	@test -x /usr/bin/chromium || { echo "the browser tests need /usr/bin/chromium: as root, apt-get install chromium" >&2; exit 1; }

pins: $(UV) ## compile the requirement files again, hashes and no host names; UPGRADE=1 takes newer versions
	@$(COMPILE) --python-version 3.11 pyproject.toml --extra demo --group test --group dev --group browser -o requirements/test.txt
	@$(COMPILE) --python-version 3.11 -c requirements/test.txt pyproject.toml -o requirements/runtime.txt
	@$(COMPILE) --python-version 3.11 -c requirements/test.txt requirements/bench.in -o requirements/bench.txt
	@$(COMPILE) --python-version 3.11 -c requirements/test.txt requirements/deep.in -o requirements/deep.txt
	@$(COMPILE) --python-version 3.14 --no-deps requirements/opa.in -o requirements/opa.txt

.PHONY: verifier events help setup demo test deep lint format rooms bench chromium doubles pins
