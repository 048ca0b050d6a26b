# shellcheck shell=bash
# Chooses the Rust toolchain that the Makefile and setup.sh use. Sourced, never run; installs nothing.
#
# The pinned toolchain (rust-toolchain.toml) is the one whose lints and formatting are enforced. Any other at least
# as new as the MSRV (rust-version in Cargo.toml) builds and tests larder too: select_toolchain falls back on it
# and says so.

LARDER_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LARDER_MSRV=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$LARDER_ROOT/Cargo.toml")
LARDER_PINNED=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$LARDER_ROOT/rust-toolchain.toml")

# stdout is for data, stderr for talk.
say() { printf 'larder: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# at_least HAVE WANT: is version HAVE not older than WANT?
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# version_of COMMAND [ARGUMENT..]: the plain version number a tool reports, or nothing and a failure.
version_of() {
    local line
    line=$(cd "$LARDER_ROOT" && timeout 60 "$@" --version 2>/dev/null) || return 1
    line=$(printf '%s' "$line" | sed -n '1s/^[a-z-]* \([0-9][0-9.]*\).*/\1/p')
    [ -n "$line" ] && printf '%s\n' "$line"
}

# usable CARGO: does it run here, with a rustc, and is it new enough?
usable() {
    local cargo_version rustc_version
    cargo_version=$(version_of "$1") || return 1
    rustc_version=$(version_of "${1%cargo}rustc") || return 1
    at_least "$cargo_version" "$LARDER_MSRV" && at_least "$rustc_version" "$LARDER_MSRV"
}

# Puts a cargo that is new enough first in PATH (or names it in RUSTUP_TOOLCHAIN); fails where there is none.
select_toolchain() {
    local bin="${CARGO_HOME:-$HOME/.cargo}/bin" name
    case ":$PATH:" in *":$bin:"*) ;; *) PATH="$bin:$PATH" ;; esac
    export PATH
    # rustup would fetch a missing toolchain behind our back: set-up does that aloud, and with a time limit.
    export RUSTUP_AUTO_INSTALL=0
    usable cargo && return 0
    if command -v rustup >/dev/null 2>&1; then
        while read -r name _; do
            if (export RUSTUP_TOOLCHAIN="$name"; usable cargo); then
                export RUSTUP_TOOLCHAIN="$name"
                return 0
            fi
        done < <(timeout 60 rustup toolchain list 2>/dev/null)
    fi
    # A rustup without a usable toolchain hides Debian's compiler.
    if usable /usr/bin/cargo; then
        export PATH="/usr/bin:$PATH"
        hash -r
        return 0
    fi
    return 1
}

# Is the selected toolchain the pinned one?
toolchain_is_pinned() { [ "$(version_of rustc)" = "$LARDER_PINNED" ]; }

# has_component fmt|clippy: can the selected cargo run it?
has_component() { (cd "$LARDER_ROOT" && timeout 60 cargo "$1" --version >/dev/null 2>&1); }
