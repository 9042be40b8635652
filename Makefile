SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Reports of the suites; .ci/run fails if one is missing.
REPORTS := build/reports
SETUP := $(VENV)/.done
DEV := $(VENV)/.done-dev
# A second stamp: the kernels are built as soon as cargo is present.
KERNELS := $(VENV)/.done-kernels$(if $(shell command -v cargo),,-without-cargo)
SPARK_BIN := .venv-spark/bin
SPARK := .venv-spark/.done
# Processes of a suite: one for each processor, and half as many again where tests mostly wait for servers. Each process
# starts brokers and a JVM, so their number is limited on large machines.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 6 ? n : 6)))
WAITING_WORKERS ?= $(shell echo $$(( ($(WORKERS) * 3 + 1) / 2 )))

.DEFAULT_GOAL := help
PIN := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate
PIP_INSTALL := pip install --disable-pip-version-check
# Runs a suite under the ledger, which prints and records its wall and processor time: $(call suite,NAME) COMMAND
suite = @mkdir -p $(REPORTS) && $(PYTHON) .ci/ledger.py run $(1) --
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
# Tests of one file share brokers, browsers and class paths, so they stay together.
PYTEST_E2E := $(BIN)/python -m pytest -n $(WAITING_WORKERS) --dist loadfile

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{sub(/:.*/, "", $$1); printf "  make %-16s %s\n", $$1, $$2}'

setup: $(SETUP) $(KERNELS) ## create .venv with the pinned packages that DelayMQ needs at run time, and compiled kernels if cargo is present
	@echo "Ready: $(BIN)/delaymq standalone"

$(SETUP): requirements/run.txt broker_image/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) --require-hashes -r requirements/run.txt
	$(BIN)/$(PIP_INSTALL) --no-deps --no-build-isolation -e broker_image
	@touch $@

$(KERNELS): $(SETUP) requirements/kernels.txt $(wildcard broker_image/kernels/*.* broker_image/kernels/src/*.rs)
	@broker_image/kernels/install.sh $(BIN) $@

setup-dev: $(DEV) ## add the operator and the tools for tests and checks to .venv

$(DEV): $(SETUP) requirements/dev.txt operator/pyproject.toml | $(KERNELS)
	$(BIN)/$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	$(BIN)/$(PIP_INSTALL) --no-deps --no-build-isolation -e operator
	@touch $@

setup-spark: $(SPARK) ## create .venv-spark with PySpark and the analytics, from pinned packages (half a gigabyte)

$(SPARK): requirements/spark.txt broker_image/pyproject.toml spark/pyproject.toml
	$(PYTHON) -m venv .venv-spark
	$(SPARK_BIN)/$(PIP_INSTALL) --require-hashes -r requirements/spark.txt
	$(SPARK_BIN)/$(PIP_INSTALL) --no-deps --no-build-isolation -e broker_image -e spark
	@touch $@

demo: $(SETUP) ## start a broker, send delayed messages, kill and restart it, and show that each arrives once and on time
	$(BIN)/delaymq demo

run: $(SETUP) ## run a standalone broker from this tree, with its store in build/run; options: make run ARGS="--http-port 8081"
	@mkdir -p build
	$(BIN)/delaymq standalone --store-path build/run $(ARGS)

format: $(DEV) ## sort imports and format all Python code
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

check: $(DEV) ## static checks: ruff (rules and format), mypy, import contracts, size limits, licences of dependencies, rustfmt and clippy (the compiled kernels; need Rust), Biome (the console's JavaScript; needs Node), Vale (prose; needs Go)
	$(call suite,prose-linter) env PYTHONPATH=e2e $(BIN)/python .ci/lint_prose.py --build
	$(call suite,check) $(MAKE) --no-print-directory check-all check-kernels $(if $(wildcard $(SPARK)),check-spark)

# The same commands as in .pre-commit-config.yaml (verified by a test).
check-all: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	env PYTHONPATH=spark/src $(BIN)/lint-imports --no-cache
	env PYTHONPATH=e2e $(BIN)/python .ci/lint_console.py
	$(BIN)/python .ci/tidiness.py
	env PYTHONPATH=.ci $(BIN)/python -m release.licences
	env PYTHONPATH=e2e $(BIN)/python .ci/lint_prose.py

check-kernels: ## rustfmt and clippy for the compiled kernels; part of check
ifeq ($(and $(shell command -v cargo-clippy),$(shell command -v cargo-fmt)),)
	@echo "Not checked: the compiled kernels, because clippy or rustfmt is missing."
else ifneq ($(wildcard build/kernels/not-fetched),)
	@echo "Not checked: the compiled kernels, because their crates cannot be downloaded."
else
	cd broker_image/kernels && cargo fmt --check && CARGO_TARGET_DIR=../../build/kernels/target cargo clippy --locked --quiet --release -- -D warnings
endif

# The suites of the analytics and with RocketMQ's client consist of a core (`make test`) and a rest (`make test-rest`).
test: test-unit test-spark-core test-compat-core ## tests to run while developing: unit tests, the core of the analytics, the core of the suite with RocketMQ's Java client
ifndef ALL
	@echo "Not run: real API servers and kind clusters, the other tests of the analytics and with RocketMQ's client and tools, kill -9, soaks, the browser."
	@echo "Run 'make test-rest' for these, 'make test-all' for all of them, or 'make test-long' for tests that take too long for every change."
endif

# Two suites at a time, in this order: the longest first, so that both processors are busy to the end. The prerequisites
# of clusters are built first: next to a suite, the build would get half of the processors, and the kind tests need it.
REST := test-spark-rest test-compat-rest test-api test-crash
in_pairs = @echo "Running two suites at a time; each shows its output when it ends." && \
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target --assume-old=cluster ALL=1 e2e $(1)

test-all: cluster ## all tests except test-long
	$(call in_pairs,test-unit $(REST) test)

test-rest: cluster ## the tests of test-all that test does not run
	$(call in_pairs,$(REST))

test-unit: $(DEV) ## the tests that require only Python
	$(call suite,unit) $(PYTEST) -m "not kubernetes" --junitxml=$(REPORTS)/unit.xml

test-api: $(DEV) cluster ## tests of the operator, the chart, registers and replicas against real API servers and etcd
	$(call suite,api) $(PYTEST) -m kubernetes operator/tests helm/tests e2e/registers e2e/replication --junitxml=$(REPORTS)/api.xml

test-spark: test-spark-core test-spark-rest ## tests of the analytics on a local Spark (needs Java 17)

check-spark: $(DEV) $(SPARK) ## mypy for the analytics and their tests, licences of all dependencies; part of check if .venv-spark exists
	$(BIN)/mypy --config-file spark/pyproject.toml --python-executable $(SPARK_BIN)/python $(addprefix spark/,src testing tests bench image)
	env PYTHONPATH=.ci $(BIN)/python -m release.licences --complete

test-spark-core: check-spark
	$(call suite,spark-core) $(SPARK_BIN)/python -m pytest -c spark/pyproject.toml spark/tests -n $(WORKERS) --dist loadfile -m core --junitxml=$(REPORTS)/spark-core.xml

test-spark-rest: $(SPARK)
	$(call suite,spark) $(SPARK_BIN)/python -m pytest -c spark/pyproject.toml spark/tests -n $(WORKERS) --dist loadfile -m "not core" --junitxml=$(REPORTS)/spark.xml

test-compat: test-compat-core test-compat-rest test-crash ## DelayMQ with RocketMQ's own client, tools and broker; killed processes; the console in a browser (needs a JDK, Maven, Chromium)

test-compat-core: $(DEV)
	$(call suite,compat-core) $(PYTEST_E2E) e2e/compat -m core --junitxml=$(REPORTS)/compat-core.xml

test-compat-rest: $(DEV) cluster
	$(call suite,compat) $(PYTEST_E2E) e2e/compat e2e/console -m "not core" --junitxml=$(REPORTS)/compat.xml

test-crash: $(DEV) ## tests with kill -9 at many points in time; short soaks
	$(call suite,crash) $(PYTEST_E2E) --dist worksteal e2e/crash e2e/soak --junitxml=$(REPORTS)/crash.xml

cluster: $(DEV) ## build the prerequisites of the kind clusters, once and outside the checkout (nothing if Docker and a registry are available)
	$(call suite,cluster) env PYTHONPATH=e2e $(BIN)/python -m cluster build

e2e: $(DEV) cluster ## brokers on real kind clusters: killed pods, lost nodes, rollouts, larger volumes, more groups; cleans up afterwards
	$(call suite,kind) $(BIN)/python -m pytest e2e/kind --durations=15 --junitxml=$(REPORTS)/kind.xml

# The tests that test-all does not run, in parts that can run alone and take at most an hour each on two processors.
LONG_PARTS := fuzz replication faults crash python real soak kind
test-long: $(LONG_PARTS:%=test-long-%) ## tests that take too long for every change; single parts: make test-long-fuzz, -replication, -faults, -crash, -python, -real, -soak, -kind

FUZZED := $(wildcard broker_image/tests/*/test_*fuzz*.py broker_image/tests/*/*/test_*fuzz*.py broker_image/tests/store/test_store_crash_*.py broker_image/tests/store/test_store_damage_*.py) broker_image/tests/message/test_message_record.py broker_image/tests/broker/test_delivery_model.py $(wildcard broker_image/tests/schedule/test_schedule_timeline_*.py)
FUZZED += $(wildcard operator/tests/reconcile/test_operator_*_crashes.py)
test-long-fuzz: $(DEV) ## 13,000,000 hostile inputs (900,000 for each decoder, fewer for whole brokers), 20,000 simulated power losses, 10,000 damaged logs, a crash of the operator at every call
	$(call suite,long-fuzz) env DELAYMQ_FUZZ_INPUTS=900000 DELAYMQ_CRASH_STATES=20000 DELAYMQ_DAMAGES=10000 DELAYMQ_DEATHS_SHARE=1 $(PYTEST) $(FUZZED) --timeout=3000 --junitxml=$(REPORTS)/long-fuzz.xml

test-long-replication: $(DEV) ## 210,000,000 steps of simulated groups of replicas, an hour of processor time
	$(call suite,long-replication) env DELAYMQ_FUZZ_INPUTS=35000000 $(PYTEST) broker_image/tests/replication/test_replication_model.py --timeout=7200 --junitxml=$(REPORTS)/long-replication.xml

test-long-faults: $(DEV) cluster ## 30 schedules of faults of replicas in network namespaces, promotions among 100,000 pending messages, RocketMQ's master and slave as a control
	$(call suite,long-faults) $(BIN)/python -m pytest e2e/replication --long -m long --junitxml=$(REPORTS)/long-faults.xml

test-long-crash: $(DEV) ## kill -9 at 20 points of each load; five kills in one run; RocketMQ's broker as a control
	$(call suite,long-crash) $(PYTEST_E2E) --dist worksteal e2e/crash --long -m long --junitxml=$(REPORTS)/long-crash.xml

test-long-python: $(DEV) ## the suites with RocketMQ's client and tools and with kill -9, with brokers without compiled kernels
	$(call suite,long-python) env DELAYMQ_KERNELS=off $(PYTEST_E2E) e2e/compat e2e/crash --junitxml=$(REPORTS)/long-python.xml

test-long-real: $(DEV) ## the compatibility suite against RocketMQ's broker, and its slow cases against DelayMQ
	$(call suite,long-compat) $(PYTEST_E2E) e2e/compat e2e/console --long -m long -k "not soak" --junitxml=$(REPORTS)/long-compat.xml
	$(call suite,long-real) $(PYTEST_E2E) e2e/compat --against real --junitxml=$(REPORTS)/long-real.xml

test-long-soak: $(DEV) ## soaks of the broker and of the asyncio client
	$(call suite,long-soak) $(PYTEST_E2E) e2e/soak e2e/compat/test_compat_python_soak.py --long -m long --junitxml=$(REPORTS)/long-soak.xml

test-long-kind: cluster ## slow scenarios on kind clusters; the cost of an idle operator
	$(call suite,long-kind) $(BIN)/python -m pytest e2e/kind --long -m long --junitxml=$(REPORTS)/long-kind.xml

BENCH := PYTHONPATH=bench:e2e:broker_image/testing:operator/testing $(BIN)/python
bench: $(DEV) ## compare DelayMQ with RocketMQ's broker, as ratios (about 60 minutes; see bench/README.md); options: make bench ARGS="--rows sync8"
	$(BENCH) -m harness.isolated -- $(BIN)/python bench/run.py $(ARGS)

bench-nats: $(DEV) ## compare DelayMQ with NATS JetStream, as ratios (about 40 minutes; needs Go 1.26); options: make bench-nats ARGS="--rows timed"
	$(BENCH) -m nats $(ARGS)

bench-compare: $(DEV) ## compare two commits of DelayMQ, as ratios: make bench-compare A=main B=HEAD ARGS="--rows sync8 --pairs 5"
	$(if $(and $(A),$(B)),,$(error A or B is missing: use make bench-compare A=COMMIT B=COMMIT))$(BENCH) bench/compare.py $(ARGS) -- "$$A" "$$B"

bench-history: $(DEV) ## record the newest results of make bench in docs/performance-history.md; options: make bench-history ARGS="--results FILE"
	$(BENCH) -m reporting.history $(ARGS)

profile: $(DEV) ## profile the broker while a row group of make bench is measured, into build/profiles: make profile ROW=sync8 ARGS="--quick"
	$(if $(ROW),,$(error ROW is missing: use make profile ROW=GROUP, for example ROW=sync8))$(BENCH) -m profiling $(ARGS) -- "$$ROW"

bench-hostile: $(DEV) ## effect of hostile clients on an honest one: errors, p50 and p99, memory, descriptors (about 20 minutes, two processors)
	PYTHONPATH=e2e:broker_image/testing $(BIN)/python -m harness.isolated -- $(BIN)/python bench/hostile.py

bench-spark: .venv-spark/.done ## speed and memory of reading a store with Spark (needs Java 17 and 8 GB of disk)
	$(SPARK_BIN)/python spark/bench/run.py

docs: $(DEV) ## regenerate the pages in docs/ that are derived from the code
	$(BIN)/python -m delaymq.config.page docs/operations/configuration.md
	$(BIN)/python -m delaymq.cli.docs_page docs/operations/commands.md
	$(BIN)/python docs/tools/modules_page.py

screenshots: $(DEV) ## regenerate the screenshots of the console in docs/images (needs Chromium)
	PYTHONPATH=e2e $(BIN)/python e2e/console/screenshots.py

pictures-cli: $(DEV) ## regenerate the pictures of the command line in docs/images, with a temporary broker
	$(BIN)/python docs/tools/make_cli_pictures.py

picture-report: $(SPARK) ## generate docs/images/analytics-report.png from a generated store (needs Java 17 and Chromium)
	PYTHONPATH=spark/testing $(SPARK_BIN)/python -m delaymq_spark_testing.report_picture

RELEASE := build/release
# Variables on make's command line are in the environment of recipes: no value is parsed by a shell.
RELEASE_STEP := env PYTHONPATH=.ci SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" $(BIN)/python -m release $(RELEASE)
release: release-check release-files ## build wheels, chart, bills of materials (SBOM) and checksums into build/release, and publish nothing (needs cargo); sign: make release SIGN_KEY=FILE
	$(RELEASE_STEP) seal --sign-key "$$SIGN_KEY"

release-images: release-check-images release-files ## build all of make release and the three images (needs cargo and Docker): make release-images BASE_IMAGE=NAME@sha256:DIGEST BUILD_IMAGE=NAME@sha256:DIGEST
	$(RELEASE_STEP) images --base-image "$$BASE_IMAGE" --build-image "$$BUILD_IMAGE" --flags "$$DOCKER_FLAGS"
	$(RELEASE_STEP) seal --sign-key "$$SIGN_KEY"

# What would fail only after the build of the wheels.
release-check: $(DEV)
	@command -v cargo > /dev/null || { echo "make release needs cargo for the wheel of the compiled kernels: install Rust 1.85 or newer" >&2; exit 1; }
	@$(RELEASE_STEP) check --sign-key "$$SIGN_KEY"

release-check-images: release-check
	@$(RELEASE_STEP) check --base-image "$$BASE_IMAGE" --build-image "$$BUILD_IMAGE" --flags "$$DOCKER_FLAGS"

# The same commit gives the same bytes.
release-files: $(DEV)
	rm -rf $(RELEASE)
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && \
	    $(BIN)/pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w $(RELEASE) ./broker_image ./operator ./spark && \
	    CARGO_TARGET_DIR=build/kernels/target $(BIN)/maturin build -q --release --locked --interpreter $(BIN)/python \
	        --manifest-path broker_image/kernels/Cargo.toml --out $(RELEASE)
	$(RELEASE_STEP) files

pins: ## regenerate the pins in requirements/ from the .in files (needs uv); images get the versions that are tested
	$(PIN) -o requirements/dev.txt requirements/dev.in
	$(PIN) -c requirements/dev.txt -o requirements/spark.txt requirements/spark.in
	$(PIN) -o requirements/kernels.txt requirements/kernels.in
	for image in run broker operator; do $(PIN) -c requirements/dev.txt -o requirements/$$image.txt requirements/$$image.in || exit 1; done
	$(PIN) -c requirements/spark.txt -o requirements/spark-image.txt requirements/spark-image.in
	$(PIN) -c requirements/dev.txt -c requirements/spark.txt -o requirements/build.txt requirements/build.in

clean: ## remove everything that the targets created, except the caches outside the checkout
	rm -rf $(VENV) .venv-spark build bench/results

.PHONY: help setup setup-dev setup-spark demo run format check check-all check-kernels check-spark test test-all test-rest test-unit test-api test-spark test-spark-core test-spark-rest
.PHONY: test-compat test-compat-core test-compat-rest test-crash cluster e2e test-long $(LONG_PARTS:%=test-long-%)
.PHONY: bench bench-nats bench-compare bench-history profile bench-hostile bench-spark docs screenshots pictures-cli picture-report release release-images release-check release-check-images release-files pins clean
