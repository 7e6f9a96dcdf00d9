# The things that people do here. `make` alone lists them.

GO ?= go
ROUNDS ?= 10
FUZZTIME ?= 30s
FOR ?= 3s
GOLANGCI_LINT = $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Every server that the machine can have is required; what it can't have is said. Packages
# run side by side: no rule and no test depends on the machine standing still.
# A program with the race detector sleeps for a second when it ends, unless told not to;
# the tests start hundreds of programs. Collecting garbage less often saves an eighth of the
# tests' processor time.
RACE = GORACE=atexit_sleep_ms=0 GOGC=400
# Test programs are linked at each run, nobody debugs them, and what was compiled in one clone
# serves in the next.
BUILD = -trimpath -ldflags=-s
TESTRUN = $(GO) run ./scripts/testrun
# Test programs run side by side, six at most, as the processors have time to spare (scripts/testrun).
# Each go test has some of them ready.
TESTRUNS = required=$$(scripts/test-required) && LOCK_TEST_REQUIRE=$$required CGO_ENABLED=1 $(RACE) $(TESTRUN) -most 6
GOTEST = $(TESTRUNS) $(ONE) -race $(BUILD) -vet=off -count=1 -p 4 -parallel 4

# The race detector of Go 1.26 breaks down (SIGSEGV, CHECK failed) when two processors run timers of
# one bubble of testing/synctest. On one processor it finds the same races, since it knows them by
# the order of events; what two processors do is tried by the other lanes.
ONE = GOMAXPROCS=1

# Broken locks are there to be caught by a rule, not by the race detector, and the suite's code is
# under it with every lock.
PLAIN = $(BUILD) -vet=off -count=1 -timeout 30m
BROKEN = ./conformance/flawed/... ./conformance/internal/rules ./conformance
# Forms that have the suite already, on other servers or reached in another way. Two suites of a
# package at a time: with four, requests wait for each other, cases are inconclusive and are repeated
# with long TTLs, and all of it takes twice as long.
WAYS = ./mysql ./internal/rolling ./redis/redlock ./etcd ./zookeeper ./redis .
ALSO = $(PLAIN) -p 4 -parallel 2 -run ^TestAlso
# What go test compiles, without a link.
COMPILE = $(GO) list $(BUILD) -test -deps -export
UNFLAWED = $$($(GO) list ./... | grep -v -e /conformance/flawed -e /conformance/internal/rules -e '/conformance$$' -e $(TUTORIAL))
TUTORIAL = /examples/tutorial

# The packages that take longest begin first: some of them compute, others wait.
LONGEST = ./mysql ./cmd/lockctl ./etcd ./redis/... ./zookeeper ./internal/rolling . ./mysql/internal/... ./file ./memory ./internal/servertest ./examples/dispatcher ./conformance/internal/engine ./backend/fault

# Locks on which no rule may fail: in memory, in files, in other processes, behind wrappers and
# adapters, far away, and the one that docs/writing-a-backend.md shows.
HEALTHY = ^(TestConformance.*|TestHealthy|TestDistantServer.*|TestServerThatFailsNowAndThen|TestLockerThatAlwaysRenews|TestAdapterOfAFinishedLock|TestProcessesOfALockWithoutDeadlines|TestWritingABackendPage|TestUnusualLocks|TestWatchesThatEndOften)$$
HEALTHYAT = ./memory ./file ./backend/fault ./conformance ./conformance/internal/rules ./conformance/flawed .

# What make check runs: nothing in it needs a server.
CHECKED = . ./backend/... ./memory ./file ./config ./conformance/report ./scripts/testrun ./examples/stock

# Modules of their own, whose dependencies are not those of the library.
MODULES = observe/otel conformance/peers bench examples/marketplace/plot
# Those of programs that the tests build.
HELPERS = internal/etcdserver internal/containers

.DEFAULT_GOAL := help
.PHONY: help check test test-also test-suite test-redis test-mysql test-etcd test-zookeeper test-healthy test-all test-long test-peers test-observe test-containers images pages fuzz vet-systems lint bench marketplace plot sale tutorial

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check: ## After each change: format, vet, and what needs no server, the suite on memory included
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	@$(TESTRUN) -short $(CHECKED)
	@$(GO) test -run '^(TestPage|TestPromises|TestProperties|TestCheckReports|TestHooks|TestEveryRule|TestRules|TestLate|TestHolds|TestSlow|TestHanging|TestCancelled|TestClaims)' ./conformance ./conformance/internal/engine

test: ## The tests of the locks on real servers, each form with the race detector
	@scripts/test-servers
	@CGO_ENABLED=1 $(COMPILE) -race $(UNFLAWED) >/dev/null
	@$(COMPILE) .$(TUTORIAL) >/dev/null
	@$(GOTEST) -timeout 30m $(LONGEST) $(UNFLAWED) -- $(PLAIN) .$(TUTORIAL)

test-also: ## The same forms on further servers and versions, and reached in other ways
	@scripts/test-servers
	@$(COMPILE) $(WAYS) >/dev/null
	@$(TESTRUNS) $(ALSO) $(WAYS)

test-suite: ## The tests of the suite: each broken lock is caught by its rule, healthy ones by none
	@scripts/test-servers
	@$(COMPILE) $(BROKEN) >/dev/null
	@$(TESTRUNS) $(PLAIN) -p 4 -parallel 4 $(BROKEN)

test-redis: ## The tests on Redis
	@LOCK_TEST_REQUIRE=redis CGO_ENABLED=1 $(TESTRUN) -race -timeout 20m ./redis/... ./conformance/flawed ./conformance/flawed/redlockflawed -- $(ALSO) ./redis ./redis/redlock

test-mysql: ## The tests on MySQL and MariaDB
	@$(GOTEST) -timeout 20m ./mysql/... ./conformance/flawed/mysqlflawed ./conformance/flawed/rowflawed -- $(ALSO) ./mysql

test-etcd: ## The tests on etcd
	@LOCK_TEST_REQUIRE=etcd CGO_ENABLED=1 $(TESTRUN) -race -timeout 20m ./etcd ./conformance/flawed/etcdflawed -- $(ALSO) ./etcd

test-zookeeper: ## The tests on ZooKeeper
	@LOCK_TEST_REQUIRE=zookeeper CGO_ENABLED=1 $(TESTRUN) -race -timeout 20m ./zookeeper ./conformance/flawed/zkflawed -- $(ALSO) ./zookeeper

test-healthy: ## The suite on healthy locks of many kinds, without a server, ROUNDS times (10): it accuses none
	LOCK_TEST_LONG=1 $(GO) test $(BUILD) -count=1 -run '^TestDefaultRunIsShort$$' ./memory
	@$(TESTRUN) $(BUILD) -vet=off -count $(ROUNDS) -p 1 -timeout 60m -run '$(HEALTHY)' $(HEALTHYAT)

test-all: vet-systems test test-also test-suite test-observe test-containers test-peers test-long ## All there is, with containers, peers and ROUNDS rounds (10): several hours

test-long: ## The same ROUNDS times over (10), to meet rarer races
	@scripts/test-servers
	@CGO_ENABLED=1 $(COMPILE) -race $(UNFLAWED) >/dev/null
	@LOCK_TEST_LONG=1 && export LOCK_TEST_LONG && $(GOTEST) -timeout 180m -count $(ROUNDS) $(UNFLAWED) && \
	LOCK_TEST_REQUIRE=$$required $(TESTRUN) -timeout 180m -count $(ROUNDS) $(BUILD) -vet=off -p 1 -parallel 4 $(BROKEN) .$(TUTORIAL)

test-peers: ## Run the suite on locks of others, hold docs/peers.md against it, and test bench and the plot
	@scripts/test-servers
	required=$$(scripts/test-required) && cd conformance/peers && LOCK_TEST_REQUIRE=$$required $(GO) test $(BUILD) -timeout 20m ./...
	$(GO) -C bench test $(BUILD) ./...
	$(GO) -C examples/marketplace/plot test $(BUILD) ./...

test-observe: ## Test the metrics, the alert rules and the dashboard, on a real Prometheus
	@scripts/test-servers prometheus
	cd observe/otel && LOCK_TEST_REQUIRE=prometheus CGO_ENABLED=1 $(RACE) $(GO) test $(BUILD) -race -count=1 -timeout 5m ./...

test-containers: ## Run the suite on etcd and ZooKeeper in containers, which have other versions
	@scripts/test-servers containers
	LOCK_TEST_SOURCE=container LOCK_TEST_REQUIRE=etcd,zookeeper $(TESTRUN) $(BUILD) -vet=off -count=1 -p 2 -parallel 4 -timeout 10m -run '^TestConformance$$' ./etcd ./zookeeper

images: ## Build container images of servers from Debian packages
	@scripts/images

pages: ## Write what is generated in the pages anew, but for peers, performance and the tutorial
	$(GO) test ./conformance -run '^(TestPage|TestPromises)$$' -update -update-promises
	$(GO) test -p 1 $$($(GO) list ./conformance/flawed/... | grep 'flawed$$') -run '^TestPage$$' -update
	$(GO) test ./cmd/lockctl -run '^TestGuaranteesPage$$' -update
	$(GO) test ./config -run '^TestSchemaIsThatOfTheTypes$$' -update
	$(GO) test . -run '^TestWritingABackendPage$$' -update

fuzz: ## Run each fuzz target for FUZZTIME (30s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			echo "$$target in $$file"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
		done; \
	done

vet-systems: export GOFLAGS += -trimpath
vet-systems: ## Vet on two more systems; it first compiles for them all that is imported, which takes minutes
	GOOS=darwin $(GO) vet -gcflags='all=-N -l' ./...
	GOOS=windows $(GO) vet -gcflags='all=-N -l' ./...

# What is compiled here serves the tests. For this system golangci-lint has vet, too.
lint: export GOFLAGS += -trimpath
lint: ## Check format, vet, types on other systems, linters, and go.mod
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofmt:"; echo "$$unformatted"; exit 1; fi
	$(GO) run ./scripts/typecheck darwin windows
	@for module in $(MODULES) $(HELPERS); do echo "$(GO) -C $$module vet ./..."; GOWORK=off $(GO) -C $$module vet ./... || exit 1; done
	$(GO) mod tidy -diff
	GOWORK=off $(GO) -C observe/otel mod tidy -diff
	$(GOLANGCI_LINT) run ./...
	cd observe/otel && GOWORK=off $(GOLANGCI_LINT) run ./...

bench: ## Compare with bare commands and the locks of others; prints tables; BENCH=-update writes docs/performance.md
	@scripts/test-servers
	$(GO) -C bench run . $(BENCH)

marketplace: ## The marketplace example on a Redis of its own, FOR (3s) each; prints a table
	@scripts/test-servers
	@$(GO) run ./scripts/withservers redis -- $(GO) run ./examples/marketplace -for $(FOR)

plot: ## Draw the marketplace's table of docs/examples.md
	@$(GO) -C examples/marketplace/plot run . $(CURDIR)/docs/marketplace.svg < docs/examples.md

tutorial: ## The steps of docs/tutorial.md on a Redis of its own, or STEP alone
	@scripts/test-servers
	@$(GO) run ./scripts/withservers redis -- $(GO) run ./examples/tutorial $(STEP)

sale: ## The flash sale example on a MariaDB and a Redis of its own; prints a table
	@scripts/test-servers
	@$(GO) run ./scripts/withservers mariadb redis -- $(GO) run ./examples/sale
