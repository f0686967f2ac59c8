# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
CARGO ?= cargo
# No --package: the features of dependencies are then those of the whole workspace, and nothing is compiled twice.
XTASK  = $(CARGO) run --quiet --bin xtask --

.PHONY: help demo demo-down test test-quick check chart-check doctor bench tools image need-cargo
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

test-quick: need-cargo ## what needs no cluster: checks, unit and property tests, examples in the code
	@$(XTASK) test --quick

check: need-cargo ## formatting, words, length of files, licences and other rules of dependencies, lints
	@$(XTASK) check

chart-check: need-cargo ## lint the Helm charts and compare what they install with the plain files
	@$(XTASK) charts

doctor: need-cargo ## what the cluster of $KUBECONFIG lacks for banlieue, and what to do about each
	@test -n "$$KUBECONFIG" || { echo "KUBECONFIG is not set, so there is no cluster to ask: run 'export KUBECONFIG=FILE', then this again." \
	  "'make demo KEEP=1' makes a cluster and prints the line for it." >&2; exit 2; }
	@$(CARGO) build --bin banlieue-controller
	@set -e; doctor=$${CARGO_TARGET_DIR:-target}/debug/banlieue-controller; echo "$$doctor doctor"; $$doctor doctor

bench: need-cargo ## what lending and filling cost, as ratios against bare baselines of the same run, and as counts
	@$(XTASK) bench

tools: need-cargo ## build the pinned programs: Kubernetes, KubeVirt, SPIRE, identity providers
	@$(XTASK) tools

image: need-cargo ## build the measured guest image and record its golden values
	@$(XTASK) image

# What must be there before our own checks can be compiled; these say what else is missing, in one command.
need-cargo:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: run 'curl -fsSL https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env', then this" \
	  "again. Debian's Rust is too old; rustup fetches the one that rust-toolchain.toml names." >&2; exit 2; }
	@need=$$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml); have=$$($(CARGO) --version | cut -d' ' -f2); \
	  test "$$(printf '%s\n' "$$need" "$$have" | sort -V | head -n1)" = "$$need" || { echo "cargo is $$have, and $$need or newer is needed:" \
	  "run 'curl -fsSL https://sh.rustup.rs | sh -s -- -y', put ~/.cargo/bin first in PATH, then run this again." >&2; exit 2; }
	@command -v cc >/dev/null || { sudo=$$(test "$$(id -u)" = 0 || echo 'sudo '); \
	  echo "A C compiler is missing: run '$${sudo}apt-get update && $${sudo}apt-get install --no-install-recommends libc6-dev" \
	  "$$(sed -n 's/^    ("\([a-z0-9-]*\)", .*/\1/p' hack/xtask/src/packages.rs | paste -sd' ')'," \
	  "which is all that is needed, then this again." >&2; exit 2; }
	@for target in target "$$CARGO_TARGET_DIR"; do test -d "$$target" || continue; \
	  other=$$(find "$$target" -maxdepth 2 -type d ! -writable -print -quit 2>/dev/null); \
	  test -z "$$other" || { echo "$$other belongs to $$(stat -c %U "$$other"), and you may not write to it:" \
	  "run 'sudo chown -R $$(id -un) $$(realpath "$$target")', then this again." >&2; exit 2; }; done
