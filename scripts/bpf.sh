#!/usr/bin/env bash
# Builds the programs for the kernel: every bpf/*.bpf.c of larder-kernel into bpf/prebuilt/*.bpf.o, and notes in
# bpf/prebuilt/SOURCES which sources they are of. The objects are committed, so that a build needs no clang; a test
# fails when SOURCES and sources differ. Needs clang 14 or later, llvm-strip and libbpf's headers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../crates/larder-kernel/bpf"
export LC_ALL=C
mkdir -p prebuilt
include=/usr/include/$(gcc -print-multiarch 2>/dev/null || uname -m)-linux-gnu
[[ -d $include ]] || include=/usr/include/$(uname -m)-linux-gnu
for source in *.bpf.c; do
    object=prebuilt/${source%.c}.o
    # -g is for BTF; the DWARF goes with the strip. The prefix map keeps this machine's paths out.
    clang -O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -I"$include" \
        -ffile-prefix-map="$PWD"=. -fdebug-compilation-dir=. -c "$source" -o "$object.new"
    llvm-strip -g "$object.new"
    mv "$object.new" "$object"
    echo "$object: $(stat -c %s "$object") bytes" >&2
done
sha256sum ./*.c ./*.h > prebuilt/SOURCES
