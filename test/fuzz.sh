#!/bin/bash
# fuzz.sh [TIME]
#
# Runs every fuzz target of the tree for TIME (10s; or a count such as 5000x). Ends with status 1 if
# one fails; go test has then written the failing input into the package's testdata.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s} GO=${GO:-go}
out=$(mktemp); trap 'rm -f "$out"' EXIT

fuzz() { "$GO" test -run='^$' -fuzz="^$2\$" -fuzztime="$time" "$1" 2>&1 | tee "$out"; }
# go test sometimes takes its own time limit for a failure (golang/go#48591)
only_late() { grep -q 'context deadline exceeded' "$out" && ! grep -q 'Failing input' "$out"; }

status=0 n=0
while IFS=: read -r file name; do
    n=$((n + 1))
    echo "fuzz $name in $(dirname "$file")"
    fuzz "$(dirname "$file")" "$name" || { only_late && fuzz "$(dirname "$file")" "$name"; } ||
        { echo "FAIL: $name"; status=1; }
done < <(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/func //' | sort)
echo "$n fuzz targets for $time each"
exit $status
