# Everything a fresh machine needs: git, make, Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NPU_VENV  := .venv-npu
NPU_STAMP := $(NPU_VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: run test test-cluster test-slow test-gpu test-npu faults chaos fuzz lint bench clean

run: $(STAMP)   ## cold launch, then warm launch, of the embedded defaults
	$(BIN)/warmrank demo

RAY_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.ray' tests | sort)

# Files in the order of their paths: by default those with the fewest tests run last, which are the longest ones.
# Bytecode is written, so that the second command need not rewrite the tests' assertions once more.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not ray and not slow and not torchair and not netns"
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		-m "ray and not slow and not netns and not torchair" $(RAY_TESTS)

test-cluster: $(STAMP) ## launches on real nodes, in network namespaces: needs root, iproute2 and util-linux
	$(BIN)/python -m pytest -m netns tests/cluster

test-slow: $(NPU_STAMP) ## longer variants of what `make test` and `make test-npu` run
	$(BIN)/python -m pytest -m "slow and not torchair"
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(NPU_VENV)/bin/python -m pytest -m "slow and torchair" tests/npu

test-gpu: $(STAMP) ## what needs a CUDA device: device tests, the capture contract, decode as ratios
	$(BIN)/python -m pytest -m gpu tests/device tests/contract/test_device_backend.py
	$(BIN)/python benchmarks/gpu_decode.py

# Where torch_npu is installed, `import torch` would load it, which fails without CANN's libraries.
test-npu: export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
test-npu: $(NPU_STAMP) ## the real torch_npu package on an emulated NPU; then what needs an Ascend NPU
	$(NPU_VENV)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "torchair and not slow" tests/npu
	$(NPU_VENV)/bin/python -m pytest -m npu tests/device tests/contract/test_device_backend.py

# 200 rounds are the full counts of docs/faults.md, and take hours. Power cuts need root. The second command is
# the store's own suite on a file system whose flock lets everybody in, but for two tests of the lock itself.
FAULT_ROUNDS ?= 200

faults: $(STAMP) ## every fault in full
	$(BIN)/python -m pytest tests/faults --fault-rounds $(FAULT_ROUNDS) --timeout 0
	$(BIN)/python -m pytest -p tests.support.no_flock tests/contract/test_backend.py tests/unit/test_fetch.py \
		tests/unit/test_publish.py tests/unit/test_launches.py tests/unit/test_local.py tests/unit/test_store.py \
		--deselect tests/unit/test_fetch.py::test_lock_that_is_held_is_not_waited_for_for_ever \
		--deselect tests/unit/test_fetch.py::test_threads_that_fetch_at_once_copy_once

CHAOS_LAUNCHES ?= 200
CHAOS_SEED ?= 0

chaos: $(STAMP) ## launches struck at random, from a seed; CHAOS_ONLY=N repeats one; root adds cut cables
	$(BIN)/python -m pytest tests/chaos -m chaos -s --chaos-nodes --chaos-launches $(CHAOS_LAUNCHES) \
		--chaos-seed $(CHAOS_SEED) $(if $(CHAOS_ONLY),--chaos-only $(CHAOS_ONLY))

FUZZ_PAIRS ?= 20000
FUZZ_SEED ?= 0

fuzz: $(STAMP) ## small programs, cold and then changed in fresh processes, against eager; FUZZ_ARGS="--replay SEED:PAIR"
	$(BIN)/python -m tests.fuzz --jobs $$(nproc) --pairs $(FUZZ_PAIRS) --seed $(FUZZ_SEED) $(FUZZ_ARGS)

lint: $(STAMP)  ## every linter CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP) ## every benchmark, as ratios
	for b in benchmarks/*.py; do $(BIN)/python $$b || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	@echo "installing torch, Ray and the tools into $(VENV): one to two minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

# All that is installed in $(VENV) is importable in it too; torch_npu itself must stay out of $(VENV).
$(NPU_STAMP): $(STAMP) constraints.txt
	$(PYTHON) -m venv --clear --without-pip $(NPU_VENV)
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
		echo "import os, site; os.environ.setdefault('TORCH_DEVICE_BACKEND_AUTOLOAD', '0'); site.addsitedir('$$site')" \
		> $$($(NPU_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/warmrank.pth
	$(BIN)/python -m pip --python $(NPU_VENV)/bin/python install --quiet --disable-pip-version-check --no-deps \
		-c constraints.txt torch_npu
	printf '#!%s\nfrom orchestrator.cli.main import main\nmain()\n' "$$(pwd)/$(NPU_VENV)/bin/python" > $(NPU_VENV)/bin/warmrank
	chmod +x $(NPU_VENV)/bin/warmrank
	touch $@

clean:
	rm -rf $(VENV) $(NPU_VENV) warmrank-out .mypy_cache .ruff_cache .pytest_cache
