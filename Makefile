# Everything that is made lands in bin/ and build/. Targets that need root say so.

GO        ?= go
TEST      ?= ./...
TESTFLAGS ?= -p 2 -timeout 20m
BENCHFLAGS ?=

# A Go that is older than go.mod asks for fetches the right one, as a module.
export GOTOOLCHAIN ?= auto

# In a clone that is another user's git refuses to answer, and go build to go on.
VCS := $(shell git status >/dev/null 2>&1 || echo -buildvcs=false)

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup build images test bench demo lint generate ci install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## packages, Go, containerd, runc, CRIU (root; Debian 12 or 13)
	@scripts/setup.sh

# Static binaries, so that cairn-init runs in any image; its size is memory per sandbox.
build: ## cairnd, cairn, cairn-init and cairn-criu, into bin/
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build $(VCS) -trimpath -o bin/ ./cmd/cairnd ./cmd/cairn
	CGO_ENABLED=0 $(GO) build $(VCS) -trimpath -ldflags '-s -w' -o bin/ ./cmd/cairn-init ./cmd/cairn-criu

images: setup ## the Debian images that tests and the demo use, into build/ (root)
	@scripts/image/build.sh tiny build/tiny.tar
	@scripts/image/build.sh demo build/demo.tar
	@scripts/image/build.sh workloads build/workloads.tar

# Tests drive real containers, so that none is answered from the cache.
test: setup build images ## set up, build, vet and run every test with the race detector (root)
	$(GO) vet ./...
	$(GO) test -race -count=1 $(TESTFLAGS) $(TEST)

bench: setup build images ## the benchmark: a table, and JSON in build/ (root)
	$(GO) run ./scripts/bench $(BENCHFLAGS)

demo: setup build images ## the demonstration on a real repository (root)
	@scripts/demo/prepare.sh build/demo-repo.tar
	bin/cairn demo --image-tar build/demo.tar

lint: ## linters for Go and shell
	@scripts/lint/run.sh

generate: ## generated code, again
	$(GO) generate ./...

ci: ## what the CI runs
	@bash .ci/run

install: build ## install on this host (root); see scripts/install.sh --help
	scripts/install.sh

clean: ## remove what was made
	rm -rf bin build
