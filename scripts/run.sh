#!/usr/bin/env bash
# Runs a command with the toolchain set up: scripts/run.sh cargo bench
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh test
select_toolchain
exec "$@"
