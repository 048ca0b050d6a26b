#!/usr/bin/env bash
# The gate: everything a change must pass. Runs every step even after one failed, says how long each took, and ends
# with what failed and the sum of all tests.
#
#   scripts/test.sh           all steps
#   scripts/test.sh clippy    the named ones: fmt clippy test doc release
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh test
select_toolchain

# Lints of another compiler are not ours: they are shown but fail nothing, except in CI.
DENY=(-D warnings)
if [ "${CI:-}" != true ] && ! toolchain_is_pinned; then
    say "warnings are shown, not enforced: this is not Rust $LARDER_PINNED"
    DENY=()
fi

# Tests that cannot run on this machine append a line here (lab/larder-testkit); under CI a skip is a failure.
LARDER_SKIPS=$(mktemp)
export LARDER_SKIPS

# Incremental data only costs time where nothing is built twice.
[ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0

TEST_LOG=$(mktemp)
trap 'rm -f "$TEST_LOG" "$LARDER_SKIPS"' EXIT
SUMMARY=()
FAILED=()

# A component that is not there: a named skip for a person, a failure in CI.
without() {
    if [ "${CI:-}" = true ]; then
        echo "$1 is not installed, and CI goes nowhere without it"
        return 1
    fi
    echo "skipped: $1 is not installed and could not be"
    return 77
}

step_fmt() {
    has_component fmt || { without rustfmt; return; }
    cargo fmt --all --check
}

step_clippy() {
    has_component clippy || { without clippy; return; }
    cargo clippy --locked --workspace --all-targets -- "${DENY[@]}"
}

# The tidy test (import arrows, purity of the core, documents, claims) is one of these.
step_test() {
    cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$TEST_LOG"
}

step_doc() {
    # Private items too: the readers of these pages work on larder.
    RUSTDOCFLAGS="${DENY[*]} -A rustdoc::private_intra_doc_links" cargo doc --locked --workspace --no-deps --document-private-items
}

# Rehearses a release with the binary of the tests: every package is made, opened and asked for its version.
step_release() {
    local linter=${LARDER_TOOLS:-$HOME/.cache/larder/bin}/actionlint dist
    [ -x "$linter" ] || { without actionlint; return; }
    if [ "${CI:-}" != true ]; then
        for tool in rpmbuild rpm2cpio cpio cargo-cyclonedx; do
            command -v "$tool" >/dev/null 2>&1 || { without "$tool"; return; }
        done
        /usr/bin/python3 -c "import wheel, pip" >/dev/null 2>&1 || { without "python3-wheel or python3-pip"; return; }
    fi
    "$linter" .github/workflows/*.yml
    cargo build --locked -p larder
    dist=$(mktemp -d)
    scripts/release.sh --binary "${CARGO_TARGET_DIR:-target}/debug/larder" "$dist" || return
    rm -r "$dist"
}

run_step() {
    local name=$1 started=$SECONDS status=0 verdict
    printf '\n== %s\n' "$name"
    # A subshell with its own errexit: `set -e` does not act inside a condition.
    set +e
    (set -eo pipefail; "step_$name")
    status=$?
    set -e
    case $status in
        0) verdict=ok ;;
        77) verdict=skipped ;;
        *) verdict=FAILED; FAILED+=("$name") ;;
    esac
    SUMMARY+=("$(printf '%-8s %-8s %4d s' "$name" "$verdict" $((SECONDS - started)))")
    printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - started))
}

STEPS=("$@")
[ ${#STEPS[@]} -gt 0 ] || STEPS=(fmt clippy test doc release)
for name in "${STEPS[@]}"; do
    declare -F "step_$name" >/dev/null || die "there is no step '$name'"
    run_step "$name"
done

printf '\n'
printf '%s\n' "${SUMMARY[@]}"
[ ${#FAILED[@]} -eq 0 ] || printf 'failed: %s\n' "${FAILED[*]}"
if [ -s "$LARDER_SKIPS" ]; then
    echo "skipped tests, each with the reason:"
    sort -u "$LARDER_SKIPS"
fi
# A test that skips itself counts as passed for its runner: it is moved to the skipped ones here.
[ ! -s "$TEST_LOG" ] || awk -v left="$(cut -f1 "$LARDER_SKIPS" | sort -u | wc -l)" '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
     END { printf "%d passed, %d failed, %d skipped\n", passed - left, failed, ignored + left }' "$TEST_LOG"
[ ${#FAILED[@]} -eq 0 ]
