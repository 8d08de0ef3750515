# Two commands: `make quickstart` and `make test`. Both install into .venv first. `make quick` is the short test.
PYTHON ?= python3
TEST_PROCESSES ?= 4
# What an empty .venv is given, as in `TORCH="torch==2.8.* torchvision==0.23.*" make test`; `make clean` empties it.
TORCH ?= torch torchvision
# The distributions of plugins/ that the README's commands use; the others there are examples of packages of one's own.
PLUGINS := $(wildcard $(addprefix plugins/petra-graph-,studies text vision))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST = $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# Hundreds of processes read what one has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test tests quick check format gpu clean

quickstart: $(STAMP)
	$(BIN)/petra-graph run specs/quickstart.toml

# What `make check` runs takes one core: tests are under way meanwhile.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=2 check tests

tests: $(STAMP)
	$(PYTEST)

quick: $(STAMP)
	$(PYTEST) -m 'not slow and not processes' --hypothesis-profile quick

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/budget.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installs nothing: the Python of .venv if that is here, or else PYTHON, measures on this machine's GPUs (tools/README.md).
gpu:
	PYTHONPATH=. $(if $(wildcard $(STAMP)),$(BIN)/python,$(PYTHON)) tools/gpu.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build

$(STAMP): pyproject.toml $(addsuffix /pyproject.toml,$(PLUGINS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[test]' $(addprefix --editable ./,$(PLUGINS))
	touch $(STAMP)
