# Two commands: `make quickstart` and `make test`. Each makes .venv first, from pyproject.toml alone.
#   PYTHON=python3.12   the interpreter .venv is made with (3.11 or newer)
#   CUDA=12             packages of that CUDA major instead of the driver's; 13 where there is no driver
#   PYTEST_ARGS=-x      more arguments for pytest
PYTHON ?= python3
CUDA ?= $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
EXTRA := $(if $(filter 12,$(CUDA)),cu12,cu13)
INSTALLED := .venv/installed-$(EXTRA)
BESIDE := tests/host tests/lto $(wildcard tests/test_[j-z]*.py)
EVENTS := $(CURDIR)/.venv/test-events

.PHONY: quickstart test lint clean

quickstart: $(INSTALLED)
	.venv/bin/python examples/quickstart.py

# The simulator is chosen before Numba is imported, so its tests are a process of their own. Half of the work is done beside
# the other half, and what it said is shown behind it. All passes run, also after a failure.
test: $(INSTALLED)
	@rm -f "$(EVENTS)" "$(EVENTS)-beside"; status=0; \
	.venv/bin/ruff check --output-format=concise . || status=1; \
	pass() { echo "== pytest $$*"; NVMATH_DEVICE_TEST_EVENTS=$$events .venv/bin/python -m pytest $(PYTEST_ARGS) $$*; }; \
	(status=0; events="$(EVENTS)-beside"; \
	    pass tests/sim || status=1; pass $(BESIDE) || status=1; exit $$status) > .venv/beside.log 2>&1 & beside=$$!; \
	events="$(EVENTS)"; pass tests/gpu || status=1; \
	pass tests --ignore=tests/gpu $(patsubst %,--ignore=%,$(BESIDE)) || status=1; \
	wait $$beside || status=1; cat .venv/beside.log; \
	awk '{ n[$$1]++ } END { \
	    printf "== all passes: %d LTO-IRs generated, %d cubins linked, %d simulated kernels\n", n["ltoir"], n["cubin"], n["simulated"]; \
	    printf "%d passed, %d failed, %d skipped\n", n["passed"], n["failed"] + n["error"], n["skipped"] }' "$(EVENTS)" "$(EVENTS)-beside"; \
	exit $$status

lint: $(INSTALLED)
	.venv/bin/ruff check --output-format=concise .

$(INSTALLED): pyproject.toml
	rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q -e ".[$(EXTRA),test,examples]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
