SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Reports of the suites, by which .ci/run tells a suite that ran from one that did not.
REPORTS := build/reports
SETUP := $(VENV)/.done

.DEFAULT_GOAL := help
PIN := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2}'

setup: $(SETUP) ## make .venv with everything, from pins

$(SETUP): requirements/dev.txt broker_image/pyproject.toml operator/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e broker_image -e operator
	@touch $@

demo: $(SETUP) ## start a broker, send delayed messages, kill it in between, see them arrive once and on time
	$(BIN)/delaymq demo

check: $(SETUP) ## what can be told without running: ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=spark/src $(BIN)/lint-imports --no-cache

test: cluster test-unit test-spark test-compat e2e ## all tests: units, Spark, the real Java client and broker against ours with kill -9, real kind clusters

test-unit: $(SETUP) ## the tests that need no cluster; those on a real API server need `make cluster` first
	@mkdir -p $(REPORTS)
	$(BIN)/python -m pytest --junitxml=$(REPORTS)/unit.xml

test-compat: $(SETUP) ## RocketMQ's own client, tools and broker against ours; processes killed; the console in a browser (needs a JDK, Maven, Chromium)
	@mkdir -p $(REPORTS)
	$(BIN)/python -m pytest e2e/compat e2e/crash e2e/soak e2e/console --junitxml=$(REPORTS)/compat.xml

# PySpark is half a gigabyte: whoever does not touch spark/ need not have it.
SPARK_BIN := .venv-spark/bin
.venv-spark/.done: requirements/spark.txt broker_image/pyproject.toml spark/pyproject.toml
	$(PYTHON) -m venv .venv-spark
	$(SPARK_BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements/spark.txt
	$(SPARK_BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e broker_image -e spark
	@touch $@

setup-spark: .venv-spark/.done ## make .venv-spark with PySpark and the analytics, from pins

test-spark: $(SETUP) .venv-spark/.done ## types, data source and jobs of the analytics, on a local Spark (needs Java 17)
	@mkdir -p $(REPORTS)
	$(BIN)/mypy --config-file spark/pyproject.toml --python-executable $(SPARK_BIN)/python spark/src
	$(SPARK_BIN)/python -m pytest -c spark/pyproject.toml spark/tests --junitxml=$(REPORTS)/spark.xml

cluster: $(SETUP) ## build once, outside the checkout, what real clusters need here (nothing where Docker and a registry are)
	PYTHONPATH=e2e $(BIN)/python -m cluster build

e2e: cluster ## brokers on real kind clusters: pods killed, nodes lost, rolled, grown, scaled; cleans up behind itself
	@mkdir -p $(REPORTS)
	$(BIN)/python -m pytest e2e/kind --junitxml=$(REPORTS)/kind.xml

test-long: $(SETUP) ## what takes too long for every change: all kill instants, the real broker as control, more fuzzing
	DELAYMQ_FUZZ_INPUTS=100000 $(BIN)/python -m pytest
	$(BIN)/python -m pytest e2e/compat e2e/crash e2e/soak --long
	$(BIN)/python -m pytest e2e/kind --long

bench: $(SETUP) ## ours and the real RocketMQ broker side by side, as ratios (about 40 minutes; see bench/README.md)
	PYTHONPATH=e2e $(BIN)/python -m harness.isolated -- $(BIN)/python bench/run.py

bench-spark: .venv-spark/.done ## how fast Spark reads a store, and in how much memory (needs Java 17 and 8 GB of disk)
	$(SPARK_BIN)/python spark/bench/run.py

docs: $(SETUP) ## write the tables in docs/ that are made of the code
	$(BIN)/python -m delaymq.config.page docs/operations/configuration.md
	$(BIN)/python -m delaymq.cli.page docs/operations/commands.md

screenshots: $(SETUP) ## make the pictures of the console in docs/images anew (needs Chromium)
	PYTHONPATH=e2e $(BIN)/python e2e/console/screenshots.py

pictures-cli: $(SETUP) ## make the pictures of the command line in docs/images anew, from a broker that runs
	$(BIN)/python docs/tools/make_cli_pictures.py

pins: ## write the pins in requirements/ anew from the .in files (needs uv); images get the versions that the tests ran with
	$(PIN) -o requirements/dev.txt requirements/dev.in
	$(PIN) -c requirements/dev.txt -o requirements/spark.txt requirements/spark.in
	for image in broker operator; do $(PIN) -c requirements/dev.txt -o requirements/$$image.txt requirements/$$image.in || exit 1; done
	$(PIN) -c requirements/spark.txt -o requirements/spark-image.txt requirements/spark-image.in
	$(PIN) -c requirements/dev.txt -c requirements/spark.txt -o requirements/build.txt requirements/build.in

clean: ## remove what the targets made, but for the caches outside the checkout
	rm -rf $(VENV) .venv-spark build bench/results

.PHONY: help setup setup-spark demo check test test-unit test-compat test-spark cluster e2e test-long bench bench-spark docs screenshots pictures-cli pins clean
