# layoutgemm: `make demo` runs the main job, `make test` runs everything that is tested.
# It needs only Python >= 3.10 and make (GNU make 3.81 or later, Linux or macOS). Everything is installed into $(VENV).
# A second run of a target installs nothing, unless pyproject.toml changed.
#
#   make test PYTHON=python3.12                                        another interpreter
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu         the small build of torch, without CUDA
#   make bench-algebra PYCUTE=path/to/cutlass/python                   compare with a copy of pycute too
#   make bench-gemm BENCH="--shapes 8192,4096 --no-sustained"          some shapes, bursts only

PYTHON      ?= python3
VENV        ?= .venv
JOBS        ?= 2
PYCUTE      ?=
BENCH       ?=
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The DSL and the SASS tools exist for Linux only. Other systems cannot compile and run kernels.
ifeq ($(shell uname -s),Linux)
TEST_STAMPS := $(VENV)/.tests
endif

# The tests that run compiled kernels in the emulator.
EMULATED := tests/emulator tests/kernels/epilogue tests/kernels/ladder $(wildcard $(foreach each,emulated fused gated \
  grouped lanes line_ends mutants promoted,tests/kernels/*/test_$(each)*.py))

.PHONY: help demo test lint test-env pytest emulated docs dist playground notebooks chromium bench-algebra bench-proofs bench-gemm clean
.DELETE_ON_ERROR:
# Two calls of pip would write into one environment.
.NOTPARALLEL:

help:
	@echo "make demo           derive, check, compile and run one GEMM, on a GPU if there is one"
	@echo "make test           ruff, mypy and all tests"
	@echo "make lint           ruff and mypy only"
	@echo "make pytest         the tests only"
	@echo "make emulated       only the tests that run kernels in the emulator, with their times; compiled kernels are cached"
	@echo "make chromium       install the browser for the tests of HTML pages (Debian and Ubuntu, as root)"
	@echo "make docs           build the documentation site, build/site/index.html"
	@echo "make playground     build a page that runs the layout algebra in the browser, build/playground (needs npm)"
	@echo "make dist           build the wheel and the source archive, and check them"
	@echo "make notebooks      convert the scripts in notebooks/ to out/notebooks"
	@echo "make bench-algebra  time the layout algebra against other implementations (PYCUTE=folder with pycute)"
	@echo "make bench-proofs   time the provers"
	@echo "make bench-gemm     time the GEMM kernels on this GPU against torch.mm, cuBLASLt and quack (BENCH=options)"
	@echo "make clean          remove $(VENV), caches and outputs"

# Without a GPU the demo runs the plan in NumPy, and does not download torch.
demo: $(VENV)/.base
ifeq ($(shell uname -s),Linux)
	@$(MAKE) -s $(VENV)/.dsl \
	  || echo "==> the CuTe DSL could not be installed: the demo does not compile the kernel"
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  $(MAKE) -s $(VENV)/.torch \
	    || echo "==> torch could not be installed: the demo does not use the GPU"; \
	else echo "==> no NVIDIA GPU found: the demo runs in NumPy"; fi
else
	@echo "==> not Linux: the demo runs in NumPy and does not compile the kernel"
endif
	@$(BIN)/layoutgemm demo

test: lint pytest

# test-env installs the tests' requirements; pytest runs the tests.
test-env: $(VENV)/.dev $(TEST_STAMPS)

pytest: test-env
	@echo "==> tests, $(JOBS) at a time (a few minutes)"
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

emulated: test-env
	@$(BIN)/python -m pytest -p tests.seconds -n $(JOBS) --dist worksteal -q $(EMULATED)

# `# fmt: skip` and `# fmt: off` fence the aligned tables that the formatter would break.
lint: $(VENV)/.dev
	@echo "==> ruff"
	@$(BIN)/ruff check --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@echo "==> mypy (the first run takes about half a minute)"
	@$(BIN)/mypy

# Never fails: without a browser the tests of HTML pages are skipped.
chromium:
	@if { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then \
	  echo "==> a browser for the tests of HTML pages is installed"; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "==> no Chromium, and only root can install it by apt-get: the tests of HTML pages will be skipped"; \
	else \
	  echo "==> installing Chromium by apt-get, about 100 MB to fetch"; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium; } \
	    >/dev/null || echo "==> Chromium could not be installed: the tests of HTML pages will be skipped"; \
	fi

# The build makes the pictures and tables. With the DSL installed (make demo) it also runs the last notebook.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "==> build/site/index.html"

# Any static host can serve the folder.
playground: $(VENV)/.base
	@$(BIN)/python playground/build.py build/playground

# Both archives pass twine, and the wheel installs and runs in an empty environment.
dist: $(VENV)/.dist
	@rm -rf dist build/dist-check
	@$(BIN)/python -m build --outdir dist . >/dev/null && $(BIN)/twine check --strict dist/*
	@$(BIN)/python -m venv build/dist-check
	@build/dist-check/bin/python -m pip -q --disable-pip-version-check install dist/*.whl
	@cd build && dist-check/bin/layoutgemm prove "(4,8):(8,1)" "(4,8):(8,1)" && ls ../dist

notebooks: $(VENV)/.notebooks
	@mkdir -p out/notebooks
	@for each in notebooks/*.py; do \
	  $(BIN)/jupytext --quiet --to ipynb --output "out/$${each%.py}.ipynb" "$$each" || exit 1; done
	@echo "==> out/notebooks: open them with jupyter lab, or run the scripts directly"

bench-algebra: $(VENV)/.bench
	@$(BIN)/python benchmarks/bench_algebra.py $(if $(PYCUTE),--pycute "$(PYCUTE)")

bench-proofs: $(VENV)/.base
	@$(BIN)/python benchmarks/bench_proofs.py

# About six minutes on an H200.
bench-gemm: $(VENV)/.dsl $(VENV)/.torch $(VENV)/.peers
	@mkdir -p out
	@$(BIN)/python benchmarks/bench_gemm.py --json out/gemm.json $(BENCH)

clean:
	rm -rf "$(VENV)" out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find layoutgemm tests layouts atoms kernels benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A directory with an interpreter and pip. Each target below makes one call of pip, since each call builds layoutgemm again.
$(VENV)/.made:
	@command -v "$(PYTHON)" >/dev/null || { echo "error: $(PYTHON) not found; say make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: layoutgemm needs Python 3.10 or later; say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 || { \
	  echo "==> making a virtual environment in $(VENV) with $$("$(PYTHON)" --version)"; \
	  "$(PYTHON)" -m venv "$(VENV)" \
	    || { echo "error: no venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }; }
	@touch $@

$(VENV)/.base: pyproject.toml | $(VENV)/.made
	@echo "==> installing layoutgemm, numpy and sympy, about 30 MB"
	@$(PIP) install -q -e .
	@touch $@

$(VENV)/.dsl: pyproject.toml | $(VENV)/.base
	@echo "==> installing the CuTe DSL and the SASS tools, about 200 MB to fetch and 500 MB on disk"
	@$(PIP) install -q -e '.[dsl]'
	@touch $@

$(VENV)/.torch: pyproject.toml | $(VENV)/.base
	@echo "==> installing torch, 200 MB (CPU build) to 3 GB (with CUDA) to fetch"
	@$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -e '.[torch]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	@echo "==> installing layoutgemm, numpy, sympy, pytest, hypothesis, ruff and mypy, about 70 MB"
	@$(PIP) install -q -e '.[dev]'
	@touch $@ $(VENV)/.base

# The tests' further requirements.
$(VENV)/.tests: pyproject.toml | $(VENV)/.base
	@echo "==> installing the CuTe DSL, the SASS tools, torch, JAX and playwright, 550 MB to 3 GB to fetch"
	@$(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -e '.[dsl,operators,torch,jax,browser]' \
	  || { echo "==> trying without playwright: the tests of HTML pages will be skipped"; \
	       $(PIP) install -q $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -e '.[dsl,operators,torch,jax]'; }
	@touch $@ $(VENV)/.dsl $(VENV)/.torch

$(VENV)/.docs: pyproject.toml | $(VENV)/.base
	@echo "==> installing mkdocs-material and mkdocstrings, about 60 MB"
	@$(PIP) install -q -e '.[docs]'
	@touch $@

$(VENV)/.dist: pyproject.toml | $(VENV)/.base
	@echo "==> installing build and twine, about 20 MB"
	@$(PIP) install -q -e '.[dist]'
	@touch $@

$(VENV)/.notebooks: pyproject.toml | $(VENV)/.base
	@echo "==> installing jupytext and ipykernel, about 60 MB"
	@$(PIP) install -q -e '.[notebooks]'
	@touch $@

$(VENV)/.peers: pyproject.toml | $(VENV)/.dsl
	@echo "==> installing quack-kernels and pynvml"
	@$(PIP) install -q -e '.[bench-gemm]'
	@touch $@

$(VENV)/.bench: pyproject.toml | $(VENV)/.base
	@echo "==> installing tensor-layouts to compare with"
	@$(PIP) install -q -e '.[bench]'
	@touch $@
