#!/usr/bin/env bash
# Builds larder and runs its demo; arguments are handed to `larder demo`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh build
select_toolchain
say "building (the first time takes some minutes)"
cargo build --release --locked -p larder
exec "${CARGO_TARGET_DIR:-target}/release/larder" demo "$@"
