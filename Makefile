# Targets: build test test-apps test-kernels test-systemd test-fresh soak soak-apps limits loom miri model planted fuzz nightly lint demo bench program product install uninstall deb tarball clean. See HACKING.md.
CARGO ?= cargo
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
BUILT = $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: build test test-apps test-kernels test-systemd test-fresh soak soak-apps limits loom miri model planted fuzz nightly lint demo bench program product install uninstall deb tarball clean help

# A library below the command's own prefix is found without being told: another prefix is no other program.
FOREIGN_LIBDIR = $(filter-out $(PREFIX)/lib,$(LIBDIR))

define finish
crates/capi/slim.sh $(BUILT)/libmegapipe_c.a
crates/capi/slim.sh $(BUILT)/libmegapipe_mtcp.a
crates/capi/link.sh $(BUILT)/libmegapipe_c.a $(BUILT)/libmegapipe.so
crates/mtcp/weaken.sh $(BUILT)/libmegapipe_mtcp.a
endef

build: ## Build everything, optimised
	MEGAPIPE_LIBDIR='$(FOREIGN_LIBDIR)' $(CARGO) build --release --workspace --locked
	$(finish)

test: ## Run every test, in one build that is not optimised
	scripts/test.sh

test-apps: ## Run test suites of others plain and under the preload library; SUITES names some
	tests/apps/run.sh $(SUITES)

test-kernels: ## Run the tests of the channel and of mmsg on Linux 6.1 and 6.12, in QEMU
	scripts/test-kernels.sh

test-systemd: product ## Run megapipe setup, the units and a service's drop-in under systemd, in a container
	scripts/systemd-test.sh

test-fresh: ## Run make demo and make test in a new minimal Debian or Ubuntu, as root and as a user
	scripts/test-fresh.sh

soak: ## Run COUNT (10000) random sequences against the model, and 20,000 connections for SCALE_SECONDS (60), on each engine
	scripts/soak.sh

soak-apps: ## Run Redis, nginx, HAProxy and PostgreSQL for DURATION (600) seconds from SEED on, and kill them all the time
	tests/apps/soak.sh

limits: build ## Run programs under a CPU quota, SCHED_FIFO, a broadcast and what breaks connections, plain and promoted; as root
	tests/limits/run.py

loom: ## Check the orderings of what threads and processes share, under the model checker
	CARGO_TARGET_DIR=$(dir $(BUILT))loom RUSTFLAGS='--cfg loom' \
		$(CARGO) test --release --locked -p megapipe --lib loom
	CARGO_TARGET_DIR=$(dir $(BUILT))loom RUSTFLAGS='--cfg ring_loom' \
		$(CARGO) test --release --locked -p megapipe-ring --lib loom
	CARGO_TARGET_DIR=$(dir $(BUILT))loom RUSTFLAGS='--cfg steering_loom' \
		$(CARGO) test --release --locked -p megapipe-steering --lib loom
	CARGO_TARGET_DIR=$(dir $(BUILT))loom RUSTFLAGS='--cfg mtcp_loom' \
		$(CARGO) test --release --locked -p megapipe-mtcp --lib loom

miri: ## Check the memory accesses of the rings, with miri of the nightly toolchain
	CARGO_TARGET_DIR=$(dir $(BUILT))miri $(CARGO) +nightly miri test --locked -p megapipe-ring --lib

model: ## Check every interleaving of two promoted ends, their kernel connection and their monitor
	$(CARGO) test --release --locked -p megapipe-promote --test model -- --include-ignored --nocapture

planted: ## Plant each of twenty-one bugs in a copy of the TCP, and see that its test finds it
	scripts/planted.py

fuzz: ## Run each fuzz target for FUZZ_SECONDS (600)
	scripts/fuzz.sh

nightly: ## Run the checks that take long (PARTS names some), and sum up
	scripts/nightly.sh

lint: ## Check format, lints, documentation, licences, shell scripts, circles of files and figures of records
	scripts/lint.sh

demo: ## Build, then show Redis, redis-py and nginx plain and under megapipe run, on this machine
	scripts/demo.sh

bench: build ## Run the long suite of measurements into target/bench
	$(CARGO) build --release --locked -p megapipe-bench --features peers || echo 'without peers: they need Rust 1.91'
	scripts/bench.sh

program: ## Build `megapipe` and the library of `megapipe run`, optimised
	MEGAPIPE_LIBDIR='$(FOREIGN_LIBDIR)' $(CARGO) build --release --locked -p megapipe-cli -p megapipe-preload

product: ## Build what is installed, optimised
	MEGAPIPE_LIBDIR='$(FOREIGN_LIBDIR)' $(CARGO) build --release --locked $(addprefix -p megapipe-,cli preload capi mtcp)
	$(finish)

# Root often has no cargo: then what `make product` or `make build` has built is installed.
install: $(if $(shell command -v $(CARGO)),product) ## Install the program, the libraries, man pages and completions below PREFIX
	PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' scripts/install.sh install

uninstall: ## Remove what install has put below PREFIX
	PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' DESTDIR='$(DESTDIR)' scripts/install.sh uninstall

deb: ## Make Debian packages in target/deb, and check them with lintian
	$(MAKE) --no-print-directory product LIBDIR=/usr/lib/$$(dpkg-architecture -qDEB_HOST_MULTIARCH)
	scripts/deb.sh

tarball: ## Make a tarball that works wherever it is unpacked, for x86-64 and glibc 2.34 or later
	$(MAKE) --no-print-directory product LIBDIR=
	scripts/tarball.sh

clean: ## Remove what was built
	$(CARGO) clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14
