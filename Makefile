# Every target creates what it needs: a virtual environment in .venv with the project installed into it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CXX_SOURCES := $(shell find disc_tf/runtime -name '*.cc' -o -name '*.h') CMakeLists.txt
MODELS := build/models
BENCHED := micro_chain ctr_din rnn_tagger mobilenet_v2 tiny_bert conformer basic_pitch bert_base
# processes that the tests are spread over
JOBS ?= 2
# an older TensorFlow that the compatibility test serves an artefact in
COMPAT_TF ?= 2.19.1
COMPAT_VENV ?= .venv-compat
# stock clients of TensorFlow Serving live in an environment of their own: their package pins the whole of TensorFlow
SERVING_VENV ?= .venv-serving
# where the model table's architectures come from, and options of the table (`make models ZOO='--only BERT'`)
ZOO_VENV ?= .venv-zoo
ZOO ?=

# what the tools leave in the environment must not change what the tests see
unexport PYTHONPATH
unexport PYTHONHOME

.PHONY: demo test test-all test-compat test-serving test-node test-sanitize bench models lint env clean

env: $(STAMP)

$(STAMP): $(CXX_SOURCES) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[compiler,serve,remote,server,test]'
	touch $@

$(MODELS)/%.pb: bench/models/materialize.py | $(STAMP)
	$(BIN)/python bench/models/materialize.py $(MODELS) $*

# optimize a real model, run it at several shapes, print the speed-up and the check against TensorFlow
demo: $(STAMP) $(MODELS)/tiny_bert.pb
	$(BIN)/python bench/demo.py $(MODELS)

test: $(STAMP) $(MODELS)/tiny_bert.pb
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' tests

# everything, the slow and exhaustive suites included; Ray is large, and nothing else needs it
test-all: $(STAMP) $(MODELS)/tiny_bert.pb test-sanitize
	$(BIN)/python -m pip install --quiet -e '.[ray]'
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests
	$(MAKE) test-compat
	$(MAKE) test-serving

# an artefact made here, served by the same op binary in an older TensorFlow with its own numpy and protobuf
test-compat: $(STAMP) $(MODELS)/tiny_bert.pb $(MODELS)/micro_chain.pb
	test -x $(COMPAT_VENV)/bin/python || $(PYTHON) -m venv $(COMPAT_VENV)
	$(COMPAT_VENV)/bin/python -m pip install --quiet 'tensorflow==$(COMPAT_TF)'
	rm -rf build/wheel && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(COMPAT_VENV)/bin/python -m pip install --quiet --force-reinstall --no-deps build/wheel/disc_tf-*.whl
	$(BIN)/python tests/compat/run.py --python $(COMPAT_VENV)/bin/python --models $(MODELS)

# the model server with stock clients of TensorFlow Serving, in one process with them and as a command
test-serving: $(STAMP)
	test -x $(SERVING_VENV)/bin/python || $(PYTHON) -m venv $(SERVING_VENV)
	$(SERVING_VENV)/bin/python -m pip install --quiet -e '.[compiler,serve]' tensorflow-serving-api 'pytest>=8,<10'
	$(SERVING_VENV)/bin/python -m pytest -q tests/serving

# the service's client in JavaScript; skips where Node.js or its packages are not to be had
test-node: $(STAMP)
	$(BIN)/python -m pytest -q tests/remote/test_node_example.py

# the runtime's own tests under AddressSanitizer + UBSan and under ThreadSanitizer
test-sanitize: $(STAMP)
	for kind in address,undefined thread; do \
	  $(BIN)/cmake -S . -B build/sanitize-$$kind -DDISC_SANITIZE=$$kind -DDISC_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  && $(BIN)/cmake --build build/sanitize-$$kind --parallel 2 \
	  && $(BIN)/ctest --test-dir build/sanitize-$$kind --output-on-failure || exit 1; \
	done

# writes docs/performance.md and build/bench.json; the peers' interpreters and converted models are kept in build/bench
bench: $(STAMP) $(foreach m,$(BENCHED),$(MODELS)/$(m).pb)
	$(BIN)/python -m bench.run --models $(MODELS) --json build/bench.json --markdown docs/performance.md

# writes docs/models.md: published architectures through the compiler; what is done in build/zoo is not done again. The interpreter that
# makes KerasHub's models is one of its own: nothing else needs that package.
models: $(STAMP)
	test -x $(ZOO_VENV)/bin/python || $(PYTHON) -m venv $(ZOO_VENV)
	$(ZOO_VENV)/bin/python -m pip install --quiet $$($(BIN)/python -m pip freeze | grep -iE '^(tensorflow|keras)==') keras-hub
	$(BIN)/python -m bench.zoo --build-python $(ZOO_VENV)/bin/python --markdown docs/models.md $(ZOO)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/pyright

clean:
	rm -rf build $(VENV) $(COMPAT_VENV) $(SERVING_VENV) $(ZOO_VENV)
