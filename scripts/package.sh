#!/usr/bin/env bash
# Packages a built binary: scripts/package.sh deb BINARY FILE.deb | root BINARY FOLDER
#
# deb: a Debian package with the binary, units, manual, completions and examples. It starts nothing by itself.
# root: what a container of packaging/Containerfile has, without a container engine: the binary with the libraries it needs, for
# chroot FOLDER /usr/bin/larder.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
[ $# -eq 3 ] && [ -x "$2" ] || usage
binary="$2"

# Whether it asks for no shared library (scripts/static.sh).
is_static() { ! readelf --program-headers "$binary" | grep -q INTERP; }

# What every package has.
stage() {
    install -D -m 755 "$binary" "$1/usr/bin/larder"
    # The package is for running it: what debuggers need is many times as large.
    strip --strip-debug "$1/usr/bin/larder"
}

case "$1" in
deb)
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    root="$work/root"
    stage "$root"
    chmod 755 "$root"
    for unit in switch node; do
        install -D -m 644 "$here/packaging/systemd/larder-$unit.service" "$root/lib/systemd/system/larder-$unit.service"
    done
    "$binary" manual "$root/usr/share/man/man1"
    gzip -9n "$root"/usr/share/man/man1/*.1
    install -d "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
        "$root/usr/share/fish/vendor_completions.d" "$root/usr/share/doc/larder"
    "$binary" completions bash > "$root/usr/share/bash-completion/completions/larder"
    "$binary" completions zsh > "$root/usr/share/zsh/vendor-completions/_larder"
    "$binary" completions fish > "$root/usr/share/fish/vendor_completions.d/larder.fish"
    install -m 644 "$here/NOTICE" "$root/usr/share/doc/larder/copyright"
    cat "$here/LICENSE" >> "$root/usr/share/doc/larder/copyright"
    install -d "$root/usr/share/doc/larder/examples" "$root/etc/larder"
    install -m 644 "$here"/examples/*.toml "$root/usr/share/doc/larder/examples/"
    install -d "$root/DEBIAN"
    for script in postinst postrm; do install -m 755 "$here/packaging/deb/$script" "$root/DEBIAN/$script"; done
    version="$("$binary" version | cut -d' ' -f2)"
    depends=
    if ! is_static; then
        # The C library that the binary was linked with, or a later one.
        libc="$(dpkg-query -W -f '${Version}' libc6 | cut -d- -f1)"
        depends="Depends: libc6 (>= ${libc%%+*}), libelf1, zlib1g
"
    fi
    cat > "$root/DEBIAN/control" <<CONTROL
Package: larder
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The larder authors <larder@localhost>
${depends}Section: httpd
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Description: content-aware web cluster
 A switch that sends each request to the node that already holds the answer
 in memory and keeps every node busy and none swamped (LARD), the nodes, and
 tools that tell from an access log what it gains.
CONTROL
    # LARDER_DEB: options of dpkg-deb, such as -Znone.
    # shellcheck disable=SC2086 -- several words.
    dpkg-deb --root-owner-group ${LARDER_DEB:-} --build "$root" "$3" > /dev/null
    ;;
root)
    stage "$3"
    # The loader and the libraries, where the binary looks for them.
    is_static ||
        ldd "$binary" | grep -o '/[^ )]*' | while read -r library; do install -D -m 755 "$library" "$3$library"; done
    install -d -m 1777 "$3/tmp"
    install -d "$3/etc/larder" "$3/dev" "$3/proc"
    # What an engine of containers would mount.
    [ -e "$3/dev/null" ] || mknod -m 666 "$3/dev/null" c 1 3 2>/dev/null || true
    ;;
*) usage ;;
esac
