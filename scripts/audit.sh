#!/usr/bin/env bash
# Looks over the dependencies: licences, sources, banned crates (deny.toml), and known vulnerabilities where the database can be
# reached. Installs cargo-deny and cargo-audit.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
cd "$LARDER_ROOT"
scripts/setup.sh test
select_toolchain
for tool in deny audit; do
    if ! cargo "$tool" --version >/dev/null 2>&1; then
        say "installing cargo-$tool into ${CARGO_HOME:-$HOME/.cargo}/bin"
        cargo install --locked "cargo-$tool"
    fi
done

cargo deny --locked check licenses bans sources
if git ls-remote --exit-code https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1; then
    cargo deny --locked check advisories
    # Unmaintained crates are looked at above, those that we name ourselves; here what is unsound or withdrawn counts too.
    cargo audit --deny unsound --deny yanked
    cargo audit --deny unsound --deny yanked --file fuzz/Cargo.lock
else
    # A person sees it and goes on; where nobody looks it must not pass for a look at the advisories.
    say "advisories were not checked: the RustSec database cannot be reached"
    [ "${CI:-}" != true ] || exit 77
fi
