# Two commands: `make demo` and `make test`. Each installs what it lacks and says what it installs. `cargo xtask` has all tasks.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint book bench fuzz paper acceptance release clean

# A cargo that can build larder.
CARGO = scripts/setup.sh build && . scripts/toolchain.sh && select_toolchain && cargo

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 17

demo: ## a whole cluster on this machine, policies side by side (ARGS="--log access.log" for your own traffic)
	@$(CARGO) xtask demo $(ARGS)

test: ## the gate: formatting, lints, tests, tidy, documentation, packages (ARGS="fmt test" for some steps)
	@$(CARGO) xtask test $(ARGS)

lint: ## formatting and lints only
	@$(CARGO) xtask test fmt clippy

book: ## the documentation as a book, with search, into target/book/html
	@$(CARGO) xtask book

bench: ## microbenchmarks
	@$(CARGO) bench --locked --workspace $(ARGS)

fuzz: ## fuzz every parser for a minute (ARGS="--seconds 130 --keep TARGET"; needs a nightly Rust)
	@$(CARGO) xtask fuzz $(ARGS)

paper: ## the papers' experiments, all of them, into docs/reference/validation.md and target/validation.html (minutes; goes on where it stopped)
	@$(CARGO) run --release --locked -p larder-lab -- paper all --markdown docs/reference/validation.md --html target/validation.html $(ARGS)

acceptance: ## long runs of the release checklist (ARGS="oracle --cases 20000"; without ARGS, the list of them)
	@$(CARGO) xtask acceptance $(ARGS)

release: ## everything that a release has, into target/dist: static binary, deb, rpm, wheel, checksums, bill of materials (minutes)
	@$(CARGO) xtask release $(ARGS)

clean: ## remove what was built
	@rm -rf target fuzz/target
