# `make demo` runs the main job on a real photograph, `make quick` checks what a change breaks most often, `make test`
# tests a sample of everything, and `make test-all` everything. All set up what they need: a virtual environment with
# pinned packages, and software Vulkan where no GPU is found.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
IMAGE ?=
# More for pip, such as an index of PyTorch's CPU builds: make test PIP_ARGS="--extra-index-url URL"
PIP_ARGS ?=

# Mesa complains on stderr where no desktop session has set it.
export XDG_RUNTIME_DIR ?= /tmp

# As many processes as cores. A process of the tests takes up to 3 GiB.
PYTEST := $(RUN) -m pytest -n auto --maxprocesses 8

# Mesa's software drivers compile in two thirds of the time where LLVM does not optimize. test_kernels.py holds the
# arithmetic of every kernel with it, and `make test-all` everything.
UNOPTIMIZED := GALLIVM_PERF=nopt

# The backends of this machine, as in Q8TA_TEST_BACKENDS=metal
comma := ,
Q8TA_TEST_BACKENDS ?= vulkan,opengl,swiftshader
export Q8TA_TEST_BACKENDS
BACKENDS := $(subst $(comma), ,$(Q8TA_TEST_BACKENDS))

.PHONY: demo web quick test test-all check lint unit kernels bench docs clean

demo: $(VENV)/ready
	@.ci/adapter $(RUN) vulkan
	$(RUN) -m demo $(if $(IMAGE),--image "$(IMAGE)")

# The demo in web pages, at http://localhost:8000: photographs, and text
web: $(VENV)/ready
	$(RUN) -m demo.web

# What needs neither torch nor a device, and ten operators on one: in two minutes
quick: lint
	@.ci/adapter $(RUN) vulkan
	@$(VENV)/bin/mypy & types=$$!; Q8TA_TEST_QUICK=1 $(UNOPTIMIZED) $(PYTEST) --dist worksteal; tests=$$?; wait $$types && exit $$tests

test: lint unit

# Every kernel on every backend in all layouts, with every epilogue of each product: hours
test-all: export Q8TA_TEST_EVERYTHING = 1
test-all: UNOPTIMIZED :=
test-all: lint unit

check: lint
	$(VENV)/bin/mypy

lint: $(VENV)/checks
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

# Kernels in processes of their own: lavapipe keeps 1 to 3 MB of each pipeline until its process ends. Each of them
# takes a part in order (backends one after another), so that few pipelines are compiled twice. Other tests of a file
# share what they make, so they stay in one process. mypy has one process, so it runs beside the kernels.
unit: $(VENV)/ready
	@.ci/adapter $(RUN) $(BACKENDS)
	@.ci/browser $(RUN) || [ -z "$$CI" ]
	@$(VENV)/bin/mypy & types=$$!; \
	  $(PYTEST) --durations 30 --dist worksteal tests/kernels/test_kernels.py; kernels=$$?; wait $$types && exit $$kernels
	$(UNOPTIMIZED) $(PYTEST) --durations 30 --dist loadfile --ignore tests/kernels/test_kernels.py

# The kernels alone, on the backends of this machine: make kernels Q8TA_TEST_BACKENDS=metal
kernels: $(VENV)/ready
	@.ci/adapter $(RUN) $(BACKENDS)
	$(PYTEST) --durations 30 --dist worksteal tests/kernels

bench: $(VENV)/ready
	$(RUN) -m pytest bench --ignore bench/tests

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

$(VENV)/docs: docs/requirements.txt $(VENV)/ready
	$(INSTALL) -r docs/requirements.txt
	@touch $@

INSTALL = $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS)

# The first part of the requirements. What checks and tests import of it Python compiles as it goes.
$(VENV)/checks: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "q8ta_wgpu needs Python 3.11 or later; set PYTHON=..., found: $$($(PYTHON) --version)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python venv failed; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	sed '/^# Everything else/,$$d' requirements.txt > $(VENV)/checks.txt
	$(INSTALL) -r $(VENV)/checks.txt
	@touch $@

$(VENV)/ready: $(VENV)/checks
	$(INSTALL) -r requirements.txt
	@$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true # on all cores, where pip takes one
	@touch $@

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
