#!/usr/bin/env bash
# Fuzzes parsers for some seconds each: scripts/fuzz.sh [SECONDS_EACH [TARGET...]], all unless some are named. Needs a
# nightly Rust, because the sanitizers do; installs cargo-fuzz. Begins with the inputs that are kept, fuzz/corpus/TARGET.tar.gz;
# with KEEP=1 what was found is minimised and kept there.
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

# An archive that is the same whenever its inputs are.
keep() {
    cargo +nightly fuzz cmin "$1" -- -max_len=4096 -rss_limit_mb=2048
    tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 --directory="fuzz/corpus/$1" . |
        gzip --best --no-name >"fuzz/corpus/$1.tar.gz"
    say "$1: $(find "fuzz/corpus/$1" -type f | wc -l) inputs kept in $(stat --format=%s "fuzz/corpus/$1.tar.gz") bytes"
}

for target in "${@:-${all[@]}}"; do
    say "fuzzing $target for $SECONDS_EACH s"
    mkdir -p "fuzz/corpus/$target"
    [ ! -f "fuzz/corpus/$target.tar.gz" ] ||
        tar --extract --gzip --skip-old-files --file="fuzz/corpus/$target.tar.gz" --directory="fuzz/corpus/$target"
    cargo +nightly fuzz run "$target" -- -max_total_time="$SECONDS_EACH" -rss_limit_mb=2048
    [ "${KEEP:-}" != 1 ] || keep "$target"
done
