#!/usr/bin/env bash
# Builds the programs for the kernel: every bpf/*.bpf.c of larder-kernel and of larder-shaper into bpf/prebuilt/*.bpf.o.
# Writes the digests of the sources to bpf/prebuilt/SOURCES. The objects are committed, so that a build needs no clang; a
# test fails when SOURCES and sources differ. Needs clang 14 or later, llvm-strip and libbpf's headers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C
include=/usr/include/$(gcc -print-multiarch 2>/dev/null || uname -m)-linux-gnu
[[ -d $include ]] || include=/usr/include/$(uname -m)-linux-gnu

# Builds the programs of the current directory. The arguments are headers of other directories that they include.
build() {
    mkdir -p prebuilt
    local includes=(-I"$include") header source object
    for header in "$@"; do
        includes+=(-I"${header%/*}")
    done
    for source in *.bpf.c; do
        object=prebuilt/${source%.c}.o
        # -g is for BTF; the DWARF goes with the strip. The prefix map keeps this machine's paths out.
        clang -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter "${includes[@]}" \
            -ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c "$source" -o "$object.new"
        llvm-strip -g "$object.new"
        mv "$object.new" "$object"
        echo "$object: $(stat -c %s "$object") bytes" >&2
    done
    shopt -s nullglob
    sha256sum ./*.c ./*.h "$@" > prebuilt/SOURCES
}

(cd crates/larder-kernel/bpf && build)
(cd lab/larder-shaper/bpf && build ../../../crates/larder-kernel/bpf/packet.h)
