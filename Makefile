# One command each; every target sets up what it needs, once.
#   make demo    the engine example          make test    every test
#   make lint    format, layers, types, limits   make wheels  build, install elsewhere, test there
#   make bench   the figures of the docs     make docs    the site      make soak  long runs
#   make gpu-bundle  what a GPU machine without a network needs
#
# PYTHON  the interpreter to build .venv with (3.11 or newer)
# TORCH   what pip installs for torch; on a machine whose index serves GPU builds, for example
#         make demo TORCH="torch==2.13.0 --index-url URL-OF-THE-CPU-INDEX"
# ARGS    extra arguments of test, bench, soak and demo
# JOBS    processes of test, by default one a core and at most four
PYTHON ?= python3
TORCH  ?= torch==2.13.0
ARGS   ?=
JOBS   ?= $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4)

# threads that wait must not spin: on a busy machine spinning costs ten times the work
export OMP_WAIT_POLICY ?= PASSIVE

BIN    := .venv/bin
PIP    := $(BIN)/python -m pip install -q --disable-pip-version-check
DISTS  := core plugins/cpu plugins/triton plugins/cuda plugins/rocm plugins/metal conformance
META   := $(DISTS:%=%/pyproject.toml)
NATIVE := $(wildcard plugins/*/hatch_build.py plugins/*/src/*/kernels/*)
CODE   := $(wildcard core/src/trivet/*.py core/src/trivet/*/*.py core/src/trivet/*/*/*.py docs/decisions/0*.md)

.DELETE_ON_ERROR:
.PHONY: demo test lint bench docs wheels gpu-bundle soak clean

# pip 25.1 is the first that reads dependency groups. torch has a line of its own, so that an index
# given with it redirects nothing else.
.venv/.tools: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) $(TORCH)
	$(PIP) --group dev
	touch $@

# --no-deps keeps pip from asking an index for the siblings; `pip check` then proves that the groups
# in pyproject.toml name everything they need. Changed kernels are compiled by the same command.
.venv/.ready: .venv/.tools $(META) $(NATIVE)
	$(PIP) --no-build-isolation --no-deps $(DISTS:%=-e %)
	$(BIN)/python -m pip check
	touch $@

# the pages that are made from the code lie beside the others whenever something was run
.venv/.pages: .venv/.ready docs/generate.py $(CODE)
	$(BIN)/python docs/generate.py
	touch $@

.venv/.docs: .venv/.ready
	$(PIP) --group docs
	touch $@

demo: .venv/.pages
	$(BIN)/python examples/llm --observe $(ARGS)

# one process a core: the kit's own children are waited for, so that one alone leaves cores idle
test: .venv/.pages
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(JOBS) --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/limits.py
	$(BIN)/mypy

bench: .venv/.ready
	$(BIN)/python benchmarks $(ARGS)

soak: .venv/.ready
	$(BIN)/python -m pytest -m soak $(ARGS)

docs: .venv/.docs .venv/.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheels: .venv/.ready
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" DISTS="$(DISTS)" .ci/wheels

# what a GPU machine without a network needs for the benchmarks, in two folders of build/gpu
gpu-bundle: .venv/.ready
	$(BIN)/python .ci/gpu_bundle.py

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find core plugins conformance examples benchmarks .ci -name __pycache__ -prune -exec rm -rf {} +
