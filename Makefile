# build   a .venv with the package, the tests' and the checkers' needs; quick when nothing changed
# run     start nsqlookupd, nsqd, nsqadmin and the pipeline archive with their data in ./data;
#         Ctrl-C stops them; DEMO=1 publishes sample messages, to try things out;
#         FLAGS=--no-spark starts no Spark, FLAGS takes any flag of `penstock up`
# unit    the tests that need only Python and a C compiler, about a minute; in a fresh clone it
#         installs what they need and no more, and where `make build` has run it uses that
# test    what .ci/run calls; four files at once on two cores, as most tests wait for clocks and
#         processes; WORKERS=2 for two
# test-slow  what takes too long for that
# walks   random walks over a pipeline's days, as in the tests but thousands: WALKS=5000 SEED=1;
#         prints the seeds of those that fail, with the actions that are needed
# check   ruff and mypy
# wheel   an installable package in dist/, which needs no compiler; DIST=folder puts it elsewhere
# bench   the figures of docs/benchmarks.md and client.md; BENCH="--quick publish" passes arguments
#         to the broker's and leaves out those of clients and Spark

PYTHON ?= python3
WORKERS ?= 4
VENV := .venv
BIN := $(VENV)/bin
DIST := dist
CORE := $(wildcard $(addprefix src/penstock/,*.pyx *.pxd */*.pyx */*.pxd))

WALKS ?= 5000

# The folders of `make unit`.  First those with the longest files, so that no core is idle at the end.
UNIT := tests/model tests/meta tests/unit

PIP_INSTALL = $(BIN)/python -m pip install -q --disable-pip-version-check

.PHONY: build run unit test test-slow walks check wheel bench clean

# With PYTHONDONTWRITEBYTECODE, as in many containers, Python keeps nothing that it compiles: a start
# of nsqd would take twice as long.  What is here and up to date is used all the same.
build: $(VENV)/.core
	$(BIN)/python -m compileall -q src/penstock

$(VENV)/.installed $(VENV)/.installed-unit: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -U 'setuptools>=77' 'Cython>=3.1'
	$(PIP_INSTALL) --no-build-isolation -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.installed: EXTRAS := spark,test,bench,check,build
$(VENV)/.installed-unit: EXTRAS := unit,build

$(VENV)/.core: $(VENV)/.installed $(CORE)
$(VENV)/.core-unit: $(VENV)/.installed-unit $(CORE)
$(VENV)/.core $(VENV)/.core-unit:
	$(BIN)/python setup.py -q build_ext --inplace
	touch $@

run: build
	$(BIN)/penstock up --pipeline=archive $(if $(DEMO),--demo) $(FLAGS)

unit: $(VENV)/.core$(if $(wildcard $(VENV)/.installed),,-unit)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --without-spark $(UNIT)

test: build
	$(BIN)/python -m tests.conformance.nodejs
	$(BIN)/python -m tests.admin.chromium
	$(BIN)/python -m tests.spark.jvm
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: build
	$(BIN)/python -m pytest -m slow

walks: build
	$(BIN)/python -m tests.spark.walk --walks=$(WALKS) $(if $(SEED),--seed=$(SEED))

check: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Of an earlier build only the compiled objects are taken over: a module removed since would stay.
wheel: build
	if test -d build; then find build -path 'build/lib*' -type f ! -name '*.so' -delete; fi
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w $(DIST) .

bench: build
	$(BIN)/python -m bench.run $(BENCH)
	test -n "$(BENCH)" || $(BIN)/python -m bench.clients
	test -n "$(BENCH)" || $(BIN)/python -m bench.spark

clean:
	rm -rf $(VENV) build dist data src/*.egg-info
	rm -f src/penstock/*.c src/penstock/*.so src/penstock/*/*.c src/penstock/*/*.so
