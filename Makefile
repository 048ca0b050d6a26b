# Two commands: `make demo` and `make test`. Each installs what it lacks and says what it installs.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test release static oracle hostile audit cache-tests handoff-long handoff-trouble faults-long paper lab fmt lint tidy doc bench fuzz clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: ## a whole cluster on this machine, policies side by side (ARGS="--log access.log" for your own traffic)
	@scripts/demo.sh $(ARGS)

test: ## the gate: formatting, lints, tests, tidy, documentation
	@scripts/test.sh

release: ## everything that a release has, into target/dist: static binary, deb, rpm, wheel, checksums, bill of materials (minutes)
	@scripts/release.sh target/dist

static: ## one binary without shared libraries, for packages and containers (minutes)
	@scripts/static.sh

handoff-long: ## 170,000 connections through handoff in network namespaces, every byte verified (root; minutes)
	@scripts/run.sh cargo test --release --locked -p larder --test handoff -- --ignored --nocapture --test-threads 1 long::

handoff-trouble: ## nodes that stop, die and lose each other under load, and the demo's costs (root; a quiet machine; minutes)
	@scripts/run.sh cargo test --release --locked -p larder --test handoff -- --ignored --nocapture --test-threads 1 \
		equals:: handover_trouble:: expired:: faults:: demo::

faults-long: ## the protocols between peers in 20,000 worlds each where everything goes wrong (minutes; SEEDS=, ARGS="--first 20000")
	@scripts/run.sh cargo run --release --locked -p larder -- sim faults --seeds $(or $(SEEDS),20000) $(ARGS)

paper: ## the papers' experiments, all of them, into docs/validation.md and target/validation.html (minutes; goes on where it stopped)
	@scripts/run.sh cargo run --release --locked -p larder-lab -- paper all --markdown docs/validation.md --html target/validation.html $(ARGS)

lab: ## the papers' experiments live on this machine, every policy on every workload, into target/lab (about an hour; LOGS="a.gz b.gz")
	@scripts/lab.sh $(LOGS)

oracle: ## random requests against the node, peers and the switch, judged by a model of RFC 9111 (CASES=1000000, SEED=1, ARGS="--topology node")
	@scripts/run.sh cargo build --release --locked -p larder -p larder-oracle
	@target/release/larder-oracle --cases $(or $(CASES),1000000) --seed $(or $(SEED),1) --json target/oracle.json $(ARGS)

hostile: ## hostile clients of every kind for an hour beside ordinary ones (root, for the open files; SECONDS=, ARGS="--slow 1000")
	@scripts/run.sh cargo build --release --locked -p larder
	@python3 bench/hostile/run.py --seconds $(or $(SECONDS),3600) --slow 20000 --urls 10000000 $(ARGS)

cache-tests: ## the suite http-tests/cache-tests against the node, Varnish, nginx, Apache and Squid (DIR= a copy of it; 2 minutes)
	@scripts/run.sh cargo build --release --locked -p larder
	@python3 bench/conformance/cache_tests.py $(or $(DIR),$(error DIR= must name a copy of github.com/http-tests/cache-tests)) $(ARGS)

audit: ## licences, sources and known vulnerabilities of all dependencies (cargo-deny, cargo-audit)
	@scripts/audit.sh

fmt: ## format the code
	@scripts/run.sh cargo fmt --all

lint: ## formatting and lints only
	@scripts/test.sh fmt clippy

tidy: ## the tidy test only: import arrows, purity of the core, documents, claims
	@scripts/run.sh cargo test --locked -p larder --test tidy

doc: ## build the documentation of the code
	@scripts/test.sh doc

bench: ## microbenchmarks
	@scripts/run.sh cargo bench --locked --workspace

fuzz: ## fuzz every parser, or TARGETS="...", SECONDS_EACH=60 each; KEEP=1 keeps what is found (needs a nightly Rust and cargo-fuzz)
	@scripts/fuzz.sh $(or $(SECONDS_EACH),60) $(TARGETS)

clean: ## remove what was built
	@rm -rf target fuzz/target
