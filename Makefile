# Thin over CMake: each target prepares, configures and builds what it needs.
#   make              build/imece            make check        all tests, one closing line
#   make demo         train on real text     make install      PREFIX=/usr/local, DESTDIR
# Others: deps bench bench-comm bench-layout bench-overlap bench-peers bench-pipeline bench-plan bench-tokenizer check-peers check-slurm check-net check-trixie
#   soak-layout (COUNT=200 SEED=N FIRST=0) fmt asan ubsan tsan clang fuzz clean

BUILD   ?= build
PREFIX  ?= /usr/local
MINUTES ?= 3
SECONDS ?= 300
COUNT   ?= 200
FIRST   ?= 0
PYTHON  ?= python3

# Ninja and ccache when they are there
GENERATOR = $(if $(shell command -v ninja),-G Ninja)
LAUNCHER  = $(if $(shell command -v ccache),-DCMAKE_C_COMPILER_LAUNCHER=ccache)
CONFIGURE = cmake -S . $(GENERATOR) $(LAUNCHER) -Wno-dev
JOBS      = $(shell nproc)

all: deps
	@$(CONFIGURE) -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@cmake --build $(BUILD) -j $(JOBS)

deps:
	@tools/deps.sh build

demo: all
	@tools/deps.sh demo
	@IMECE=$(BUILD)/imece tools/demo.sh $(MINUTES)

check: all
	@$(PYTHON) tools/check.py --build $(BUILD)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

bench: all
	@$(BUILD)/imece bench cpu

bench-comm: all
	@$(PYTHON) bench/comm/bench_comm.py --build $(BUILD)

bench-layout: all
	@tools/deps.sh peers
	@IMECE_BUILD=$(abspath $(BUILD)) bench/layout/run.sh

# As root: it makes two hosts with a link of 1 Gb/s
bench-overlap: all
	@tools/deps.sh overlap
	@$(PYTHON) bench/overlap/bench_overlap.py --build $(BUILD)

bench-peers: all
	@tools/deps.sh peers
	@IMECE_BUILD=$(abspath $(BUILD)) bench/peers/run.sh

bench-pipeline: all
	@$(PYTHON) bench/pipeline/bench_pipeline.py --build $(BUILD)

# Predictions against publications: a row each, and the error
bench-plan: all
	@cmake --build $(BUILD) --target bench_plan >$(BUILD)/bench_plan.log || { cat $(BUILD)/bench_plan.log; exit 1; }
	@$(BUILD)/bench_plan tests/golden/published clusters

bench-tokenizer: all
	@tools/deps.sh peers
	@IMECE_BUILD=$(abspath $(BUILD)) bench/tokenizer/run.sh

# Layouts drawn at random, each against one rank. The seed is printed; SEED= draws the same ones again
soak-layout: all
	@$(PYTHON) tests/soak/soak_layout.py --imece $(BUILD)/imece --count $(COUNT) --first $(FIRST) $(if $(SEED),--seed $(SEED))

check-peers: all
	@tools/deps.sh peers
	@IMECE_BUILD=$(abspath $(BUILD)) tests/peers/run.sh

# Ranks on machines that are none: a Slurm of one node and of two; two hosts in network namespaces (plain, 1 Gb/s, 1 % loss). As root.
check-slurm check-net: all
	@tools/deps.sh $(@:check-%=%)
	@IMECE_BUILD=$(abspath $(BUILD)) tests/labs/$(@:check-%=%).sh

check-trixie:
	@tools/deps.sh trixie
	@tools/check-trixie.sh

# The same tests on other builds. libgomp gives the thread sanitizer false reports: plain kernels there.
asan:  FLAGS = -DIM_SANITIZE=address
ubsan: FLAGS = -DIM_SANITIZE=undefined
tsan:  FLAGS = -DIM_SANITIZE=thread -DIM_PLAIN=ON
clang: FLAGS = -DCMAKE_C_COMPILER=clang -DIM_WERROR=ON

asan ubsan tsan clang: deps
	@$(if $(filter clang,$@),tools/deps.sh clang)
	@$(CONFIGURE) -B build-$@ $(FLAGS)
	@cmake --build build-$@ -j $(JOBS)
	@$(PYTHON) tools/check.py --build build-$@

# SECONDS for each target; a finding fails and its input stays in build-fuzz/
fuzz: deps
	@tools/deps.sh clang
	@$(CONFIGURE) -B build-fuzz -DCMAKE_C_COMPILER=clang -DIM_FUZZ=ON -DIM_PLAIN=ON -DIM_SANITIZE=address,undefined
	@cmake --build build-fuzz -j $(JOBS)
	@tools/fuzz.sh build-fuzz $(SECONDS)

fmt:
	@tools/deps.sh clang
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-asan build-ubsan build-tsan build-clang build-fuzz

.PHONY: all deps demo check install bench bench-comm bench-layout bench-overlap bench-peers bench-pipeline bench-plan bench-tokenizer soak-layout check-peers check-slurm check-net check-trixie asan ubsan tsan clang fuzz fmt clean
