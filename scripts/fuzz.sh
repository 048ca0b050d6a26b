#!/usr/bin/env bash
# Fuzzes parsers for some seconds each: scripts/fuzz.sh [SECONDS_EACH [TARGET...]], all unless some are named. Needs a
# nightly Rust, because the sanitizers do; installs cargo-fuzz.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
SECONDS_EACH=${1:-60}
shift || true
scripts/setup.sh fuzz
select_toolchain
command -v rustup >/dev/null 2>&1 || die "fuzzing needs a nightly Rust, and rustup to have one"
rustup run nightly rustc --version >/dev/null 2>&1 ||
    die "fuzzing needs a nightly Rust: rustup toolchain install nightly --profile minimal"
unset RUSTUP_TOOLCHAIN
if ! cargo fuzz --version >/dev/null 2>&1; then
    say "installing cargo-fuzz into ${CARGO_HOME:-$HOME/.cargo}/bin"
    cargo install --locked cargo-fuzz
fi
[ $# -gt 0 ] || mapfile -t all < <(cargo +nightly fuzz list)
for target in "${@:-${all[@]}}"; do
    say "fuzzing $target for $SECONDS_EACH s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$SECONDS_EACH" -rss_limit_mb=2048
done
