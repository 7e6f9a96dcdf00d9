# The things that people do here. `make` alone lists them.

GO ?= go
ROUNDS ?= 10
FUZZTIME ?= 30s
GOLANGCI_LINT = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# One package at a time: the suites look for races and bound some times, and another
# suite on the same cores is the machine standing still, as far as they can tell.
# Every server that the machine can have is required; what it can't have is said.
GOTEST = required=$$(scripts/test-required) && LOCK_TEST_REQUIRE=$$required CGO_ENABLED=1 $(GO) test -race -p 1 -parallel 4

# Modules of their own, whose dependencies are not those of the library.
MODULES = conformance/peers internal/bench/peers internal/etcdserver

.DEFAULT_GOAL := help
.PHONY: help test test-long test-peers test-containers images fuzz lint bench bench-peers

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## Run every test with the race detector, on real servers
	@scripts/test-servers
	@CGO_ENABLED=1 $(GO) build -race ./...
	$(GOTEST) -timeout 20m ./...

test-long: ## The same ROUNDS times over (10), to meet rarer races
	@scripts/test-servers
	@CGO_ENABLED=1 $(GO) build -race ./...
	LOCK_TEST_LONG=1 $(GOTEST) -timeout 180m -count $(ROUNDS) ./...

test-peers: ## Run the suite on locks of others, and hold docs/peers.md against it
	@scripts/test-servers
	required=$$(scripts/test-required) && cd conformance/peers && LOCK_TEST_REQUIRE=$$required $(GO) test -timeout 10m ./...

test-containers: ## Run the suite on etcd and ZooKeeper in containers, which have other versions
	@scripts/test-servers containers
	@CGO_ENABLED=1 $(GO) build -race ./etcd ./zookeeper
	LOCK_TEST_SOURCE=container LOCK_TEST_REQUIRE=etcd,zookeeper CGO_ENABLED=1 $(GO) test -race -p 1 -parallel 4 -timeout 10m -run '^TestConformance$$' ./etcd ./zookeeper

images: ## Build container images of servers from Debian packages
	@scripts/images

fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			echo "$$target in $$file"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
		done; \
	done

lint: ## Check format, vet on three systems, linters, and go.mod
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	GOOS=windows $(GO) vet ./...
	@for module in $(MODULES); do echo "$(GO) -C $$module vet ./..."; GOWORK=off $(GO) -C $$module vet ./... || exit 1; done
	$(GO) mod tidy -diff
	$(GOLANGCI_LINT) run ./...

bench: ## Compare with the bare commands of the servers; prints a table
	@scripts/test-servers
	$(GO) run ./internal/bench

bench-peers: ## Compare Redis and Redlock with the locks of others on the same servers; prints a table
	@scripts/test-servers
	cd internal/bench/peers && $(GO) run .
