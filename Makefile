# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
CARGO ?= cargo
# No --package: the features of dependencies are then those of the whole workspace, and nothing is compiled twice.
XTASK  = $(CARGO) run --quiet --bin xtask --

.PHONY: help demo demo-down test check chart-check bench tools image need-cargo
.DEFAULT_GOAL := help

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: need-cargo ## show the main job on a cluster of its own; KEEP=1 leaves it up and prints how to use it
	@echo "compiling the developer commands (a minute or two the first time) …"
	@$(XTASK) demo $(if $(KEEP),--keep)

demo-down: need-cargo ## end the cluster that `make demo KEEP=1` left up
	@$(XTASK) demo-down

test: need-cargo ## everything CI runs: checks, unit, simulation, cluster and VM tests, timed by stage
	@$(XTASK) test

check: need-cargo ## formatting, words, length of files, licences and other rules of dependencies, lints
	@$(XTASK) check

chart-check: need-cargo ## lint the Helm charts and compare what they install with the plain files
	@$(XTASK) charts

bench: need-cargo ## what lending and filling cost, as ratios against bare baselines of the same run, and as counts
	@$(XTASK) bench

tools: need-cargo ## build the pinned programs: Kubernetes, KubeVirt, SPIRE, identity providers
	@$(XTASK) tools

image: need-cargo ## build the measured guest image and record its golden values
	@$(XTASK) image

need-cargo:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: install rustup (https://rustup.rs), then run this again." >&2; exit 2; }
	@command -v cc >/dev/null || { echo "A C compiler is missing: run 'apt-get install build-essential', then this again." >&2; exit 2; }
