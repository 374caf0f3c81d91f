# Everything that is done with this tree daily. A bare make prints the targets.

GO ?= go
export GOTOOLCHAIN ?= local
FUZZTIME ?= 10s
# The tests in test/qemu start programs that the test cache does not see; so nothing comes from it.
GOTEST = $(GO) test -count=1 -timeout=15m
# Under the race detector: all but what only starts other programs or reads sources, and the published
# tables, whose many runs share nothing: lab/virtual's tests have several at a time.
RACE = $$($(GO) list ./... | grep -v -e /test/qemu$$ -e /test/report$$ -e /test/fences$$ -e /lab/tables$$)

.PHONY: help
help: ## print this list
	@awk -F ': .*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: go ## build ./elevisor and ./elevisor-lab
	$(GO) build -o . ./cmd/elevisor ./cmd/elevisor-lab

.PHONY: demo
demo: go ## serve a scratch disk to a built-in guest; needs Go and nothing else
	$(GO) run ./cmd/elevisor-lab demo

.PHONY: test
test: go deps ## install what the tests need (or say what to install), then run all tests
	$(GOTEST) ./...

.PHONY: unit
unit: go ## the tests that need Go only: no virtual machine
	$(GOTEST) -short ./...

.PHONY: guest
guest: go deps ## the tests with a real guest only, one line for each thing it does
	$(GOTEST) -v ./test/qemu

.PHONY: race
race: go ## tests under the race detector (needs a C compiler)
	$(GOTEST) -race $(RACE)

.PHONY: fuzz
fuzz: go ## each fuzz target for FUZZTIME (10s)
	GO=$(GO) test/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: go format vet fences staticcheck ## formatting, go vet, the tree's own rules, staticcheck, go.mod

.PHONY: format
format:
	@files=$$("$$($(GO) env GOROOT)/bin/gofmt" -l .); [ -z "$$files" ] || { echo "gofmt -w these files:"; echo "$$files"; exit 1; }
	$(GO) mod tidy -diff

.PHONY: vet
vet:
	$(GO) vet ./...

.PHONY: fences
fences:
	$(GOTEST) ./test/fences

.PHONY: staticcheck
staticcheck:
	$(GO) tool -modfile=.ci/tools.mod staticcheck ./...

.PHONY: ci
ci: ## all that a submission must pass
	CI=true .ci/run

.PHONY: deps
deps: ## install the programs that the tests need
	@test/install-deps.sh

.PHONY: clean
clean: ## remove what was built; the cached guest too
	rm -rf elevisor elevisor-lab build "$${XDG_CACHE_HOME:-$$HOME/.cache}"/elevisor/guest-*

.PHONY: go
go:
	@have=$$(cd / && $(GO) env GOVERSION 2>/dev/null | sed -n 's/^go\([0-9.]*\).*/\1/p'); need=$$(sed -n 's/^go //p' go.mod); \
	if [ -z "$$have" ]; then echo "Go $$need or later is needed, and there is no '$(GO)': see https://go.dev/dl/" >&2; exit 1; fi; \
	if [ "$$(printf '%s\n' "$$need" "$$have" | sort -V | head -1)" != "$$need" ]; then \
		echo "Go $$need or later is needed; '$(GO)' is $$have: see https://go.dev/dl/" >&2; exit 1; fi
