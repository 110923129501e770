# Two commands on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
UV := .uv/bin/uv
RUN := .venv/bin
DEV := .venv-dev/bin
TRAIN := .venv-train/bin
PRISM := $(HOME)/.cache/evertally/prism/2.77.0/prism
# kubectl brings kustomize; where it is not installed, kustomize is built once, outside the checkout
KUSTOMIZE := $(if $(shell command -v kubectl),,$(HOME)/.cache/evertally/kustomize/5.6.0/kustomize)
PYTEST := $(DEV)/python -m pytest
# two processes: one starts engines, the other brokers and servers, then both share the rest (tests/conftest.py)
LANES := -n 2 --no-loadscope-reorder
BANDIT := $(DEV)/bandit --quiet --configfile tests/audits/bandit.yaml --recursive counters accountants pipelines

.DEFAULT_GOAL := help
.PHONY: help demo kafka-demo stack test check soak lint lint-deploy security sbom format lock venv venv-dev train-venv flink-venv prism clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(UV): bootstrap.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --target .uv --require-hashes -r bootstrap.lock
	@touch $@

.venv/.ready: requirements.lock pyproject.toml $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv
	VIRTUAL_ENV=.venv $(UV) pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	VIRTUAL_ENV=.venv $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-dev/.ready: requirements-dev.lock pyproject.toml $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv-dev
	VIRTUAL_ENV=.venv-dev $(UV) pip sync --quiet --compile-bytecode --require-hashes requirements-dev.lock
	VIRTUAL_ENV=.venv-dev $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-train/.ready: requirements-train.lock pyproject.toml $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv-train
	VIRTUAL_ENV=.venv-train $(UV) pip sync --quiet --compile-bytecode --require-hashes requirements-train.lock
	VIRTUAL_ENV=.venv-train $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-flink/.ready: requirements-flink.lock pyproject.toml $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) .venv-flink
	VIRTUAL_ENV=.venv-flink $(UV) pip sync --quiet --compile-bytecode --require-hashes requirements-flink.lock
	VIRTUAL_ENV=.venv-flink $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(PRISM): # the Go module proxy checks the module against Go's checksum database
	GOBIN=$(dir $@) go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0

$(HOME)/.cache/evertally/kustomize/5.6.0/kustomize:
	GOBIN=$(dir $@) go install sigs.k8s.io/kustomize/kustomize/v5@v5.6.0

venv: .venv/.ready ## install what a user runs, from hashes
venv-dev: .venv-dev/.ready ## install what the tests need, from hashes

train-venv: .venv-train/.ready ## install PyTorch and what its tests need, from hashes (6 GB)
flink-venv: .venv-flink/.ready ## install PyFlink and the Flink distribution, from hashes (1 GB)
prism: $(PRISM) ## build Beam's Prism runner once, outside the checkout (Go)

demo: .venv/.ready ## a year of New York departures, counted privately, with a picture
	$(RUN)/evertally demo

kafka-demo: .venv/.ready ## a broker, the departures at 1,000 times their speed, a worker, live totals (Java, Maven)
	$(RUN)/python -m evertally.pipelines.kafka.demo

stack: .venv-dev/.ready ## Kafka, PostgreSQL, budget, worker, exporter, Prometheus, Alertmanager on loopback until Ctrl-C
	$(DEV)/python deploy/stack/stack.py

test: lint lint-deploy .venv-train/.ready .venv-flink/.ready $(PRISM) ## everything this machine can run
	@status=0; \
	$(TRAIN)/python -m pytest -m "train and not soak" tests/training || status=1; \
	$(PYTEST) -m "not soak" $(LANES) || status=1; \
	exit $$status

check: .venv-dev/.ready ## the fast subset while working
	$(PYTEST) -m "not soak and not slow and not postgres and not browser and not faults and not kafka and not prism and not flink and not prometheus" -n 2

soak: .venv-dev/.ready .venv-train/.ready .venv-flink/.ready $(PRISM) ## the long runs: fresh keys, full-size faults and load
	@status=0; \
	$(TRAIN)/python -m pytest -m "train and soak" --timeout=7200 tests/training || status=1; \
	$(PYTEST) -m soak --timeout=7200 || status=1; \
	exit $$status

lint: .venv-dev/.ready ## ruff, mypy --strict and bandit
	$(DEV)/ruff check .
	$(DEV)/ruff format --check .
	$(DEV)/mypy counters/evertally accountants/evertally pipelines/evertally tests
	$(BANDIT)

lint-deploy: .venv-dev/.ready $(KUSTOMIZE) ## Dockerfiles, compose, Kubernetes, Prometheus, dashboards, units: checked without any engine
	$(DEV)/python deploy/lint.py

security: .venv-dev/.ready sbom ## scan the code, and ask for known vulnerabilities of what the locks pin
	$(BANDIT)
	$(DEV)/python tests/audits/audit_locks.py || [ $$? -eq 77 ]  # 77: nobody answered, and it says so

sbom: .venv-dev/.ready ## write the bill of materials, CycloneDX, to dist/sbom.json
	@mkdir -p dist
	$(DEV)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --validate --of JSON -o dist/sbom.json requirements.lock

format: .venv-dev/.ready ## rewrite to the house's format
	$(DEV)/ruff check --fix --quiet . || true
	$(DEV)/ruff format .

lock: $(UV) ## resolve the locks again
	$(UV) pip compile pyproject.toml requirements-build.in --extra plots --generate-hashes --no-annotate --no-header --quiet --upgrade -o requirements.lock --python-version 3.11
	$(UV) pip compile pyproject.toml requirements-build.in --extra dev --generate-hashes --no-annotate --no-header --quiet --upgrade -o requirements-dev.lock --python-version 3.11
	$(UV) pip compile pyproject.toml requirements-build.in --extra dev-train --generate-hashes --no-annotate --no-header --quiet --upgrade -o requirements-train.lock --python-version 3.11
	$(UV) pip compile pyproject.toml requirements-build.in --extra flink --generate-hashes --no-annotate --no-header --quiet --upgrade -o requirements-flink.lock --python-version 3.11
	$(UV) pip compile pyproject.toml requirements-build.in --extra postgres --generate-hashes --no-annotate --no-header --quiet --upgrade -c requirements-dev.lock -o deploy/images/requirements-service.lock --python-version 3.11
	$(UV) pip compile pyproject.toml requirements-build.in --extra postgres --extra train --generate-hashes --no-annotate --no-header --quiet --upgrade -c requirements-train.lock -o deploy/images/requirements-training.lock --python-version 3.11

clean: ## remove what the targets made
	rm -rf .venv .venv-dev .venv-train .venv-flink .uv .mypy_cache .ruff_cache .pytest_cache
