#!/usr/bin/env bash
# Builds the binary without shared libraries, for packages and containers of any distribution, and prints where it is. Needs
# the archives of libelf and zlib (libelf-dev, zlib1g-dev).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh build
select_toolchain
triple=$(rustc -vV | sed -n 's/^host: //p')
archive=$("${CC:-cc}" -print-file-name=libelf.a)
[ -f "$archive" ] || die "libelf.a is needed: install libelf-dev"
# With a target named, programs that run during the build are linked as ever.
LIBBPF_SYS_LIBRARY_PATH=$(dirname "$archive") RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --release --locked --package larder --features static --target "$triple"
binary=${CARGO_TARGET_DIR:-target}/$triple/release/larder
! readelf --program-headers "$binary" | grep INTERP > /dev/null || die "$binary asks for shared libraries"
echo "$binary"
