# The README's commands. Everything lives in .venv; nothing outside this folder and the user's cache is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# Two test processes share the cores; one thread each keeps them out of each other's way.
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: run generate test test-emulated asan exactness faults check format soak bench bench-kernels setup clean

PORT ?= 8000

run: $(VENV)/.runtime  ## set everything up, serve the default model on 127.0.0.1:PORT, ask it something; Ctrl-C ends it
	$(BIN)/looseleaf serve smollm2-135m --port $(PORT) --no-log-requests --ask "What is the capital of France?"

generate: $(VENV)/.runtime  ## answer a few prompts at once with the default model, without a server
	$(BIN)/looseleaf generate --model smollm2-135m --file examples/prompts.txt --max-tokens 48 --temperature 0

test: $(VENV)/.dev  ## the whole test suite
	$(TEST_ENV) $(BIN)/python -m pytest -n 2

# A build of the extension that only tests load: folder under build/, CMake options.
native = $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DLOOSELEAF_WERROR=ON $(2) >/dev/null && $(BIN)/cmake --build build/$(1)
with_native = LOOSELEAF_NATIVE_LIBRARY=$(CURDIR)/build/$(1)/_native.so $(TEST_ENV)
# What reaches native code.
EXACTNESS := tests/engine/test_exactness.py
NATIVE_TESTS := tests/kernels $(wildcard tests/models/test_native*.py)

test-emulated: $(VENV)/.dev  ## the kernels' AVX-512 and AMX code on machines without: emulated
	$(call native,emulated,-DCMAKE_BUILD_TYPE=Release -DLOOSELEAF_EMULATE=ON)
	$(call with_native,emulated) $(BIN)/python -m pytest -n 2 $(NATIVE_TESTS)
	LOOSELEAF_EXACTNESS_EXAMPLES=2 $(call with_native,emulated) $(BIN)/python -m pytest -n 2 $(EXACTNESS) -k "not default"

# The sanitizers' libraries must come first in the process. Leaks: Python's own would be reported. A pool that cannot
# be had is refused, as without them; a fault stays a signal, which some tests wait for. --capture=sys leaves the
# reports on the terminal. Tests that compile C++ of their own or touch no native memory are left out.
asan: $(VENV)/.dev  ## the kernel tests under AddressSanitizer and UndefinedBehaviorSanitizer, AVX-512 and AMX emulated
	$(call native,asan,-DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 -DLOOSELEAF_EMULATE=ON -DLOOSELEAF_SANITIZE=ON)
	$(call sanitized,) -n 2 $(SANITIZED_TESTS)
	for isa in portable avx2; do \
	  $(call sanitized,LOOSELEAF_ISA=$$isa) -n 2 $(filter tests/models/%,$(SANITIZED_TESTS)) || exit 1; \
	done
SANITIZED_TESTS = $(filter-out $(addsuffix .py,$(addprefix tests/kernels/test_,simd emulation tile_configuration isa \
  threads processors machine reference_attention)),$(wildcard tests/kernels/test_*.py tests/models/test_native*.py))
sanitized = LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:handle_segv=0 UBSAN_OPTIONS=print_stacktrace=1 \
  $(1) $(call with_native,asan) $(BIN)/python -m pytest --capture=sys

EXAMPLES ?= 1000

exactness: $(VENV)/.dev  ## the exactness suite with EXAMPLES=… scenarios per form of weights, and what they went through
	LOOSELEAF_EXACTNESS_EXAMPLES=$(EXAMPLES) $(TEST_ENV) $(BIN)/python -m pytest -n 2 $(EXACTNESS)

KILLS ?= 20
DISCONNECTS ?= 500

faults: $(VENV)/.dev  ## the fault suite with KILLS=… of the engine under load and DISCONNECTS=…, and what it did
	LOOSELEAF_FAULT_KILLS=$(KILLS) LOOSELEAF_FAULT_DISCONNECTS=$(DISCONNECTS) LOOSELEAF_FAULT_STREAMS=48 \
	  LOOSELEAF_FAULT_READERS=8 $(TEST_ENV) $(BIN)/python -m pytest tests/server/faults

check: $(VENV)/.dev  ## format, lint, types, import layers
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	@layers=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$layers"; exit 1; }

format: $(VENV)/.dev
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

soak: $(VENV)/.dev  ## a million random operations on the memory manager, audited after every one
	$(TEST_ENV) $(BIN)/python tests/memory/soak.py --operations 1000000

bench: $(VENV)/.dev  ## the benchmarks behind the README's figures
	$(BIN)/python benchmarks/run_all.py

bench-kernels: $(VENV)/.dev  ## native kernels beside reading, torch and the arithmetic's limit; ratios
	$(BIN)/python benchmarks/bench_linear.py
	$(BIN)/python benchmarks/bench_attention.py
	$(BIN)/python benchmarks/bench_step.py

setup: $(VENV)/.dev

$(VENV)/.pip: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): torch is large, this takes a minute or two …"
	$(PIP) --upgrade pip setuptools
	$(PIP) torch scikit-build-core cmake ninja
	@touch $@

# A new package must be made known to the editable install; a new module in one is found by itself.
$(VENV)/.runtime: $(VENV)/.pip pyproject.toml CMakeLists.txt $(wildcard csrc/*.* csrc/*/* src/looseleaf/*/__init__.py)
	$(PIP) --no-build-isolation --config-settings=cmake.define.LOOSELEAF_WERROR=ON --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) --group dev
	@touch $@

clean:
	rm -rf $(VENV) build dist
