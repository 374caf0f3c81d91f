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
	@awk -F ': .*## ' '/^[a-z0-9-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: go ## build ./elevisor and ./elevisor-lab
	$(GO) build -o . ./cmd/elevisor ./cmd/elevisor-lab

# Nothing of the machine or of the checkout goes into a release: no cgo, no paths, no commit stamp,
# no flags of the user's. The same sources and the same Go give the same bytes anywhere.
RELEASE = build/release
RELEASE_ENV = CGO_ENABLED=0 GOOS=linux GOAMD64=v1 GOARM64=v8.0 GOFLAGS='-trimpath -buildvcs=false'
STRIPPED_MAX = 15000000

.PHONY: release
release: go ## static, reproducible binaries for linux/amd64 and linux/arm64, with checksums, in build/release
	rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	set -e; for arch in amd64 arm64; do for program in elevisor elevisor-lab; do \
		$(RELEASE_ENV) GOARCH=$$arch $(GO) build -ldflags='-s -w' -o $(RELEASE)/$$program-linux-$$arch ./cmd/$$program; \
	done; done
	cd $(RELEASE) && sha256sum elevisor* > SHA256SUMS && cat SHA256SUMS && stat -c '%s bytes  %n' elevisor*
	@for f in $(RELEASE)/elevisor-linux-*; do size=$$(stat -c %s $$f); [ $$size -le $(STRIPPED_MAX) ] || \
		{ echo "$$f has $$size bytes, more than $(STRIPPED_MAX)" >&2; exit 1; }; done

.PHONY: arm64
arm64: go ## compile and vet everything, tests too, for linux/arm64
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...

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
