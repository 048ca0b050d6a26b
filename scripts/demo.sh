#!/usr/bin/env bash
# Builds larder and runs its demo; arguments are handed to `larder demo`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh build
select_toolchain
say "building (the first time takes some minutes)"
cargo build --profile demo --locked -p larder --no-default-features
exec "${CARGO_TARGET_DIR:-target}/demo/larder" demo "$@"
