# Every target installs what it lacks. The second run is quick: stamps in .venv remember what was done.
#
#   make demo       both planes on this machine, in two minutes, with real clients and real jobs
#   make demo SCENE=aggregation  two PyTorch jobs share an Aggregator, which is left and killed; fetches PyTorch first
#   make demo SCENE=colocation  training jobs take turns on nodes and are regrouped, by hand and by a manager; four to eight minutes, as root
#   make demo SCENE=serving  three models are measured and served within their SLOs, under a step and a kill; four minutes
#   make demo SCENE=serving-cluster  the same on GPUs that a sandbox's manager leases, through a drain besides; five minutes
#   make demo SCENE=live  a day of a job log under QSSF with lending, jobs that sleep, beside its simulation; five minutes; LOG=FILE
#   make test       what is tested of each change, side by side: 7 to 17 minutes from a clean clone on two cores
#   make check      lint, types, test
#   make bench      the measurements of docs/benchmarks.md
#   make bench-simulator  the measurements of docs/benchmarks-simulator.md
#   make bench-apps applications that page to a disk, to others' remote memory and to ours, in virtual machines: at most
#                   40 minutes, docs/benchmarks-apps.md; a second call goes on where the first stopped
#   make bench-aggregation  shared aggregation beside gloo and ps-lite (fetches 1 GB first): docs/aggregation.md
#   make reproduce  the papers' figures, ours beside theirs
#   make figures    the figures of benchmarks/results written into the documents; nothing is measured
#   make venv       what the others call first; leaves .venv/bin/farside
#   make clean      removes what the above made in this tree
#
#   make deb        the Debian package, in build/
#   make test-all   test, test-random, test-long, test-cluster and test-vm: hours, where machines are emulated; tells in
#                   the end which of them failed
#   make test-random  the tests by examples, with new ones: SEED=123 repeats those of a run
#   make test-long  what takes longer than `make test` may (CONTRIBUTING.md says which that is)
#   make test-cluster  the tests that need PyTorch, Slurm, MariaDB or PostgreSQL (1 GB), none of which may be skipped
#   make test-vm    the tests that need a kernel of their own, in virtual machines; `make test-long` has the smoke of them
#   make survival   the faults of docs/survival.md in virtual machines, and its tables made anew (two hours, emulated)
#   make screenshots  docs/page-*.png made anew, of a sandbox's page in a headless browser
#   make attack     the attacks on Farside that docs/trust.md tells of, and a table of how each ended: at most 35 minutes
#   make sanitize   the tests that touch the engine, with address and undefined-behaviour sanitizers
#   make settings-table  docs/operating.md's tables of settings, made anew from the declarations in src/farside/config
#   make format     rewrites Python and C as the lint wants them
#   make code-lines  how many lines of code the product has, without blank lines, comments and docstrings

SHELL := /bin/bash
# Thousands of processes are started here: each would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:

# Not whatever `python3` is first in PATH: pyverbs and nbd are packages of the system's own Python.
SYSTEM_PYTHON ?= /usr/bin/python3
PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check --quiet
# A file that has another hash than those of its version when it was pinned is refused. What root runs comes as wheels:
# building a package fetches others, without hashes.
BY_HASH := --no-deps --require-hashes
WHEELS := --only-binary :all:
PYTEST_ARGS ?=
SCENE ?= all
LOG ?=
# What a scene of the demo needs besides; `make venv` has none of it.
SCENE_NEEDS = $(if $(filter aggregation,$(SCENE)),.venv/.stamp-cluster) $(if $(filter serving serving-cluster,$(SCENE)),.venv/.stamp-serving) \
	$(if $(filter colocation,$(SCENE)),.venv/.stamp-training)
# The tests wait for processes most of the time, and it is memory that bounds how many may: 0.4 GB a worker. Three for
# each core keep two cores busy; more of them only collect the same tests once more.
WORKERS ?= $(shell echo $$((3 * $$(nproc))))
# Tests' files are in a folder of their own: the 100th of pytest's has a name too long for some of the tests' sockets.
OWN_FOLDER = --basetemp="$$kept/t"
SIDE_BY_SIDE = -n $(WORKERS) --dist loadfile $(OWN_FOLDER)
KEPT = kept=$$(mktemp -d /tmp/farside-XXXXXX); trap 'rm -rf "$$kept"' EXIT;
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif
BENCH_ARGS ?=
MINUTES ?= 60
DEB_ARGS ?=

BUILD_PACKAGES := python3 python3-venv python3-dev gcc libc6-dev pkg-config liburing-dev libssl-dev libibverbs-dev \
	librdmacm-dev libgnutls28-dev ibverbs-providers python3-pyverbs python3-libnbd
DEMO_PACKAGES := fio libnbd-bin nbdkit iproute2
VM_PACKAGES := qemu-system-x86 qemu-utils mmdebstrap debian-archive-keyring e2fsprogs openssh-client util-linux cpio
TEST_PACKAGES := $(DEMO_PACKAGES) $(VM_PACKAGES) nbd-client nbd-server gnutls-bin qemu-utils clang libclang-rt-14-dev vagrant openipmi \
	ipmitool groff-base systemd chromium faketime munge lldpd
CLUSTER_PACKAGES := $(TEST_PACKAGES) slurmctld slurmd slurm-client slurmdbd mariadb-server-core postgresql
CHECK_PACKAGES := clang-format shellcheck
DEB_PACKAGES := dpkg-dev
BENCH_PACKAGES := $(DEMO_PACKAGES) nbd-server qemu-utils

VM_IMAGE = test "$${FARSIDE_VM:-}" = none || $(PYTHON) -m tests.vm.harness image

CLUSTER_TESTS := tests/slurm tests/sandbox/test_examples.py tests/profile/test_torch.py tests/live/test_store.py \
	tests/live/test_idempotency.py tests/live/test_live_power.py tests/live/test_manager_process.py tests/engine/test_reduce_torch.py tests/demo/test_shared_scene.py tests/training tests/serving/test_interop.py tests/serving/test_torch_model.py \
	tests/benchmarks/test_serving_peers.py

ENGINE := kmod_shim/engine
PRELOAD := agent/profile/preload
# Headers are left out: they are tables with their comments in columns, which clang-format can't keep.
C_FILES := $(filter-out $(ENGINE)/_ffi.c, $(wildcard $(ENGINE)/*.c $(PRELOAD)/*.c benchmarks/*.c benchmarks/*/*.c tests/*/*.c))
ENGINE_INPUTS := $(filter-out $(ENGINE)/_ffi.c, $(wildcard $(ENGINE)/*.[ch])) $(ENGINE)/build_ffi.py setup.py pyproject.toml \
	$(wildcard $(PRELOAD)/*.[ch]) agent/profile/build_preload.py
SHELL_FILES := .ci/run debian/postinst debian/prerm debian/postrm $(wildcard tools/*.sh tests/*/*.sh tests/*/*/*.sh vagrant/*.sh vagrant/*/*.sh)

.PHONY: demo deb test test-all test-random test-long test-cluster test-vm check lint types attack fuzz bench figures bench-simulator bench-apps bench-aggregation reproduce venv \
	clean sanitize format packages-build packages-demo packages-deb packages-test packages-cluster packages-vm vm-image packages-check \
	packages-bench venv-dev survival screenshots settings-table hashes venv-check venv-cluster code-lines

demo: venv packages-demo $(SCENE_NEEDS)
	@.venv/bin/farside demo --scene $(SCENE) $(if $(LOG),--log "$(LOG)")

# The other Debian packages are installed while pip works; those that a build needs come first, as apt does one thing at a
# time. The tests are compiled first, or each worker would compile all of them. `make` is not $(MAKE) here and below: a
# line with that one is run by `make -n` too.
test: packages-build
	@make --no-print-directory packages-test & packages=$$!; \
	trap 'kill $$packages 2>/dev/null && wait $$packages || true' EXIT; \
	make --no-print-directory venv-dev; \
	wait $$packages || { echo "farside: Debian packages are missing; the reason is above" >&2; exit 1; }; \
	make --no-print-directory .venv/bin/promtool; \
	echo tests/*/ | xargs -n 13 -P $$(nproc) $(PYTHON) -m pytest --collect-only -qq >/dev/null || true; \
	$(KEPT) \
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) -m "not long" $(PYTEST_ARGS)

test-all:
	@failed=""; for part in test test-random test-long test-cluster test-vm; do \
		make --no-print-directory $$part || failed="$$failed $$part"; \
	done; test -z "$$failed" || { echo "farside: failed:$$failed" >&2; exit 1; }

# Without a dump of all stacks after four minutes, here and below: Python may crash as it reads those that run on. A long
# test takes as long, as does the search for the smallest example of a failure.
test-random: venv-dev packages-test
	@echo "farside: SEED=$(SEED)"
	@$(KEPT) FARSIDE_EXAMPLES=40 $(PYTHON) -m pytest $(SIDE_BY_SIDE) -m hypothesis --hypothesis-profile=random --hypothesis-seed=$(SEED) \
		-o faulthandler_timeout=0 $(PYTEST_ARGS)

test-long: venv-dev packages-test
	@$(KEPT) status=0; set -- -o faulthandler_timeout=0 $(PYTEST_ARGS); \
	$(PYTHON) -m pytest $(SIDE_BY_SIDE) -m "long and not alone" "$$@" || status=$$?; \
	$(PYTHON) -m pytest -m alone $(OWN_FOLDER) "$$@" || status=$$?; exit $$status

# Triton's core and perf_analyzer, besides, are in an environment of their own.
test-cluster: venv-cluster packages-cluster
	@$(PYTHON) -m benchmarks.serving.peer_environment
	@FARSIDE_NO_SKIP=1 $(PYTHON) -m pytest $(CLUSTER_TESTS) $(PYTEST_ARGS)

# Its first run builds the guests' image and a snapshot, kept in ~/.cache/farside/vm (or FARSIDE_VM_CACHE).
test-vm: vm-image
	@FARSIDE_VM=all $(PYTHON) -m pytest tests/vm $(PYTEST_ARGS)

# What ran has its table rewritten, also when something has failed.
survival: vm-image
	@status=0; FARSIDE_VM=all $(PYTHON) -m pytest tests/vm -k "survival or shutdown or pressure" $(PYTEST_ARGS) \
		|| status=$$?; $(PYTHON) -m tests.vm.survival_table || status=1; exit $$status

screenshots: venv-dev packages-test
	@$(PYTHON) tools/screenshots.py

settings-table: venv
	@$(PYTHON) -m farside.config.document docs/operating.md

vm-image: venv-dev packages-vm
	@$(VM_IMAGE)

check: lint types test

# Those of docs/trust.md that are tests, with the long ones; what needs a guest is in `make test-vm`.
attack: venv-dev packages-test
	@$(KEPT) $(PYTHON) -m tools.attack $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# Each target of tests/fuzz for MINUTES, all side by side; `make test-long` has a moment of them.
fuzz: venv-dev packages-test
	@FARSIDE_FUZZ_S=$$((60 * $(MINUTES))) $(PYTHON) -m pytest tests/fuzz -m long -k "not sanitized" -n 8 \
		--timeout 0 -o faulthandler_timeout=0 $(PYTEST_ARGS)

lint: venv-check packages-check
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m codespell_lib --toml pyproject.toml $$(git ls-files '*.py' '*.md' '*.c' '*.h' '*.sh' Makefile)
	@clang-format --dry-run --Werror $(C_FILES)
	@shellcheck $(SHELL_FILES)
	@$(PYTHON) -m tools.check_commits

types: venv-check
	@$(PYTHON) -m mypy
	@.venv/bin/basedpyright --warnings

# After a pin of requirements/ has changed.
hashes: .venv/.stamp-hashes
	@$(PYTHON) -m tools.hash_requirements

code-lines: venv
	@$(PYTHON) -m tools.code_lines

bench: venv packages-bench
	@$(PYTHON) -m benchmarks $(BENCH_ARGS)

# Measures nothing: writes the figures of the result files into the documents.
figures: venv-dev
	@$(PYTHON) -m benchmarks.documents

bench-simulator: venv
	@$(PYTHON) -m benchmarks.sim_speed $(BENCH_ARGS)

# Nothing else is to run meanwhile: the guests' processors are emulated.
bench-apps: vm-image
	@$(PYTHON) -m benchmarks.apps $(BENCH_ARGS)

# PyTorch has gloo; ps-lite is in a virtual environment of its own, which the first call makes.
bench-aggregation: venv-cluster
	@$(PYTHON) -m benchmarks.aggregation $(BENCH_ARGS)

reproduce: venv packages-bench
	@$(PYTHON) -m benchmarks.reproduce $(BENCH_ARGS)

format: venv-check packages-check
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .
	@clang-format -i $(C_FILES)

# The engine's C parts, and a second copy of the package with a sanitized engine through tests/fault and tests/property.
sanitize: venv-dev packages-test
	@$(PYTHON) -m pytest tests/engine tests/fuzz/test_sanitized.py $(PYTEST_ARGS)

# DEB_ARGS="--version 0.1.1" names another version.
deb: venv packages-deb
	@$(PYTHON) -m tools.build_deb $(DEB_ARGS)

# --- what the targets stand on

venv: .venv/.stamp-engine
venv-dev: .venv/.stamp-dev .venv/.stamp-serving .venv/.stamp-engine
venv-check: .venv/.stamp-check venv-dev
venv-cluster: .venv/.stamp-cluster venv-dev

packages-build:
	@tools/install_packages.sh $(BUILD_PACKAGES)
packages-demo:
	@tools/install_packages.sh $(DEMO_PACKAGES)
packages-test:
	@tools/install_packages.sh $(TEST_PACKAGES)
packages-cluster:
	@tools/install_packages.sh $(CLUSTER_PACKAGES)
packages-vm:
	@tools/install_packages.sh $(VM_PACKAGES)
packages-check:
	@tools/install_packages.sh $(CHECK_PACKAGES)
packages-deb:
	@tools/install_packages.sh $(DEB_PACKAGES)
packages-bench:
	@tools/install_packages.sh $(BENCH_PACKAGES)

.venv/.stamp-venv: | packages-build
	@test -x $(SYSTEM_PYTHON) || { echo "farside: no $(SYSTEM_PYTHON); set SYSTEM_PYTHON=" >&2; exit 1; }
	@$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "farside: $(SYSTEM_PYTHON) is older than Python 3.11 (Debian 12 has it)" >&2; exit 1; }
	@echo "farside: making .venv"
	@$(SYSTEM_PYTHON) -m venv --system-site-packages .venv
	@touch $@

.venv/.stamp-runtime: requirements/hashed/runtime.txt .venv/.stamp-venv
	@echo "farside: installing requirements/runtime.txt"
	@$(PIP) install $(BY_HASH) $(WHEELS) -r requirements/hashed/runtime.txt
	@touch $@

.venv/.stamp-dev: requirements/hashed/dev.txt requirements/hashed/training.txt requirements/hashed/runtime.txt .venv/.stamp-runtime
	@echo "farside: installing requirements/dev.txt"
	@$(PIP) install $(BY_HASH) -r requirements/hashed/dev.txt
	@touch $@

# numba, for `farside train lda`.
.venv/.stamp-training: requirements/hashed/training.txt requirements/hashed/runtime.txt .venv/.stamp-runtime
	@echo "farside: installing requirements/training.txt"
	@$(PIP) install $(BY_HASH) $(WHEELS) -r requirements/hashed/training.txt
	@touch $@

.venv/.stamp-hashes: requirements/hashed/hashes.txt .venv/.stamp-venv
	@$(PIP) install $(BY_HASH) $(WHEELS) -r requirements/hashed/hashes.txt
	@touch $@

# ONNX Runtime: 30 MB, and what reads and writes its files.
.venv/.stamp-serving: requirements/hashed/serving.txt requirements/hashed/runtime.txt .venv/.stamp-runtime
	@echo "farside: installing requirements/serving.txt"
	@$(PIP) install $(BY_HASH) $(WHEELS) -r requirements/hashed/serving.txt
	@touch $@

.venv/.stamp-check: requirements/hashed/check.txt .venv/.stamp-dev
	@echo "farside: installing requirements/check.txt"
	@$(PIP) install $(BY_HASH) -r requirements/hashed/check.txt
	@touch $@

.venv/.stamp-cluster: requirements/cluster.txt .venv/.stamp-dev
	@echo "farside: installing requirements/cluster.txt"
	@$(PIP) install --no-deps -r requirements/cluster.txt
	@$(PYTHON) -W ignore -c 'import torch' 2>/dev/null \
		|| { echo "farside: this PyTorch does not load; see the head of requirements/cluster.txt" >&2; exit 1; }
	@touch $@

# Of Debian's prometheus package, which is not installed: that would start a server.
.venv/bin/promtool: tools/extract_promtool.sh | .venv/.stamp-venv
	@tools/extract_promtool.sh $@

# -e leaves the compiled engine beside its sources, and .venv/bin/farside.
.venv/.stamp-engine: $(ENGINE_INPUTS) .venv/.stamp-runtime
	@echo "farside: building the engine"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

clean:
	@rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis src/farside.egg-info
	@rm -f $(ENGINE)/_ffi.c $(ENGINE)/*.so $(ENGINE)/*.o agent/profile/*.so
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
