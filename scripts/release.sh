#!/usr/bin/env bash
# Makes everything that a release has, into a folder: scripts/release.sh [--binary FILE] FOLDER
#
#   larder-VERSION-ARCH.tar.gz        the binary, manual, completions, examples and licence
#   larder_VERSION_ARCH.deb, larder-VERSION.ARCH.rpm, larder-VERSION-*.whl
#   larder-VERSION-ARCH.cdx.json      the bill of materials (CycloneDX): each crate in the binary, its version and licence
#   SHA256SUMS                        checksums of all these, for sha256sum --check
#
# Each package is then unpacked or installed into an empty folder, and its binary has to state its version.
# --binary FILE packages that binary instead of building one (the gate's rehearsal does so with the binary of its tests).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/toolchain.sh"
SBOM_VERSION=0.5.9
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
binary=
if [ "${1:-}" = --binary ]; then
    [ $# -ge 2 ] && [ -x "$2" ] || usage
    binary=$(realpath "$2")
    shift 2
fi
[ $# -eq 1 ] || usage
mkdir -p "$1"
out=$(realpath "$1")
[ -z "$(ls -A "$out")" ] || die "$out is not empty: name an empty or a new folder"
cd "$LARDER_ROOT"
scripts/setup.sh release
select_toolchain
[ -n "$binary" ] || binary=$(realpath "$(scripts/static.sh | tail -n 1)")
version=$("$binary" version | cut -d' ' -f2)
machine=$(uname -m)
name=larder-$version-$machine
work=$(mktemp -d)
# cargo-cyclonedx writes one file beside each manifest of the workspace.
trap 'rm -rf "$work"; find crates lab -name "$name.cdx.json" -delete' EXIT
umask 022

make_tarball() {
    local folder=$work/$name
    install -D -m 755 "$binary" "$folder/larder"
    strip --strip-debug "$folder/larder"
    "$binary" manual "$folder/man"
    mkdir "$folder/completions"
    for shell in bash zsh fish; do "$binary" completions "$shell" > "$folder/completions/larder.$shell"; done
    cp -r LICENSE NOTICE README.md CHANGELOG.md examples packaging/systemd "$folder"
    tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
}

make_sbom() {
    if [ "$(version_of cargo cyclonedx 2>/dev/null)" != "$SBOM_VERSION" ]; then
        say "installing cargo-cyclonedx $SBOM_VERSION into ${CARGO_HOME:-$HOME/.cargo}/bin"
        cargo install --quiet --locked "cargo-cyclonedx@$SBOM_VERSION"
    fi
    cargo cyclonedx --quiet --format json --spec-version 1.5 --manifest-path crates/larder/Cargo.toml --features static \
        --override-filename "$name.cdx"
    mv "crates/larder/$name.cdx.json" "$out/"
}

# states_version COMMAND..: fails unless this larder reports the version that is being released.
states_version() { [ "$("$@" version)" = "larder $version" ] || die "$* does not report version $version"; }

verify() {
    local file
    file=$(echo "$out"/*.deb) && dpkg-deb -x "$file" "$work/deb"
    states_version "$work/deb/usr/bin/larder"
    file=$(echo "$out"/*.rpm) && mkdir "$work/rpm" && (cd "$work/rpm" && rpm2cpio "$file" | cpio --quiet -idm)
    states_version "$work/rpm/usr/bin/larder"
    file=$(echo "$out"/*.whl) && /usr/bin/python3 -m pip install --quiet --root-user-action ignore --no-index --no-deps --target "$work/wheel" "$file"
    states_version "$work/wheel/bin/larder"
    mkdir "$work/tar" && tar -C "$work/tar" -xzf "$out/$name.tar.gz"
    states_version "$work/tar/$name/larder"
    python3 - "$out/$name.cdx.json" <<'PYTHON'
import json, sys
bill = json.load(open(sys.argv[1]))
names = {component["name"] for component in bill["components"]}
missing = {"rustls", "tokio", "larder-core"} - names
if missing:
    sys.exit(f"{sys.argv[1]} does not list {sorted(missing)}")
PYTHON
    (cd "$out" && sha256sum --quiet --check SHA256SUMS)
}

say "packaging $binary (version $version, $machine)"
make_tarball
scripts/package.sh deb "$binary" "$out/larder_${version}_$(dpkg --print-architecture).deb"
scripts/package.sh rpm "$binary" "$out/larder-$version.$machine.rpm"
scripts/package.sh wheel "$binary" "$out"
make_sbom
(cd "$out" && sha256sum -- * > "$work/sums" && mv "$work/sums" SHA256SUMS)
verify
ls -l "$out" | awk 'NR > 1 { print $5, $9 }' >&2
