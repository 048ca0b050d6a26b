#!/usr/bin/env bash
# Makes one package of a built binary: scripts/package.sh deb|rpm|wheel|root BINARY OUTPUT
#
#   deb    a Debian package: the binary, units for systemd, manual, completions and examples; it starts nothing by itself
#   rpm    the same for Fedora, RHEL and SUSE (needs rpmbuild)
#   wheel  a Python wheel that carries the binary, for `pip install larder` (needs Python's module `wheel`)
#   root   the folder that a container of packaging/Containerfile has, without a container engine: the binary with the
#          libraries it needs, for `chroot OUTPUT /usr/bin/larder`
#
# OUTPUT is a file; for `wheel` and `root` it is a folder, because a wheel's name states its version and platform.
set -euo pipefail
# What is installed is for all users to read, whatever this one keeps for himself.
umask 022
here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
. "$here/scripts/toolchain.sh"
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
[ $# -eq 3 ] && [ -x "$2" ] || usage
binary="$(realpath "$2")"
output="$3"
machine="$(uname -m)"

# Succeeds if the binary needs no shared library (scripts/static.sh).
is_static() { ! readelf --program-headers "$binary" | grep INTERP > /dev/null; }

# version: the version that the binary reports.
version() { "$binary" version | cut -d' ' -f2; }

# stage_binary ROOT: installs the binary without its debug information, which is many times as large as the code.
stage_binary() {
    install -D -m 755 "$binary" "$1/usr/bin/larder"
    strip --strip-debug "$1/usr/bin/larder"
}

# stage_system ROOT UNITS ZSH: installs all that a distribution's package has. UNITS and ZSH are the distribution's folders
# for systemd's units and for completions of zsh.
stage_system() {
    local root=$1 units=$2 zsh=$3 unit
    stage_binary "$root"
    chmod 755 "$root"
    for unit in switch node; do
        install -D -m 644 "$here/packaging/systemd/larder-$unit.service" "$root/$units/larder-$unit.service"
    done
    "$binary" manual "$root/usr/share/man/man1"
    gzip -9n "$root"/usr/share/man/man1/*.1
    install -d "$root/usr/share/bash-completion/completions" "$root/$zsh" "$root/usr/share/fish/vendor_completions.d"
    "$binary" completions bash > "$root/usr/share/bash-completion/completions/larder"
    "$binary" completions zsh > "$root/$zsh/_larder"
    "$binary" completions fish > "$root/usr/share/fish/vendor_completions.d/larder.fish"
    install -d "$root/usr/share/doc/larder/examples" "$root/etc/larder"
    install -m 644 "$here/NOTICE" "$root/usr/share/doc/larder/copyright"
    cat "$here/LICENSE" >> "$root/usr/share/doc/larder/copyright"
    install -m 644 "$here"/examples/*.toml "$root/usr/share/doc/larder/examples/"
}

make_deb() {
    local root=$work/root depends= libc
    stage_system "$root" lib/systemd/system usr/share/zsh/vendor-completions
    install -d "$root/DEBIAN"
    for script in postinst postrm; do install -m 755 "$here/packaging/deb/$script" "$root/DEBIAN/$script"; done
    if ! is_static; then
        # The C library that the binary was linked with, or a later one.
        libc="$(dpkg-query -W -f '${Version}' libc6 | cut -d- -f1)"
        depends="Depends: libc6 (>= ${libc%%+*}), libelf1, zlib1g
"
    fi
    cat > "$root/DEBIAN/control" <<CONTROL
Package: larder
Version: $(version)
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
    dpkg-deb --root-owner-group ${LARDER_DEB:-} --build "$root" "$output" > /dev/null
}

make_rpm() {
    local root=$work/root
    command -v rpmbuild >/dev/null || die "rpmbuild is needed: install the package rpm (Debian) or rpm-build (Fedora)"
    stage_system "$root" usr/lib/systemd/system usr/share/zsh/site-functions
    rpmbuild -bb --quiet --target "$machine" --define "_topdir $work/rpm" --define "staged $root" \
        --define "larder_version $(version)" --define "_binary_payload w9.zstdio" \
        "$here/packaging/rpm/larder.spec"
    install -D -m 644 "$work"/rpm/RPMS/"$machine"/larder-*.rpm "$output"
}

# python_with_wheel: the Python that has the module `wheel`.
python_with_wheel() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import wheel' >/dev/null 2>&1 && echo "$python" && return 0
    done
    die "Python's module wheel is needed: pip install wheel, or install the package python3-wheel"
}

make_wheel() {
    local version root scripts info tag="linux_$machine" python
    version="$(version)"
    python="$(python_with_wheel)"
    root="$work/larder-$version"
    scripts="$root/larder-$version.data/scripts"
    info="$root/larder-$version.dist-info"
    # A binary without shared libraries runs on every distribution; pip takes another one only where it was built.
    ! is_static || tag="manylinux_2_17_$machine.musllinux_1_1_$machine"
    install -D -m 755 "$binary" "$scripts/larder"
    strip --strip-debug "$scripts/larder"
    install -D -m 644 "$here/LICENSE" "$info/licenses/LICENSE"
    install -D -m 644 "$here/NOTICE" "$info/licenses/NOTICE"
    # PyPI shows the README at another address, so its links have to name the repository.
    {
        sed "s/@VERSION@/$version/" "$here/packaging/wheel/METADATA"
        echo
        sed -E 's|\]\(([A-Za-z][A-Za-z/._#-]*)\)|](https://github.com/larder-cluster/larder/blob/main/\1)|g' "$here/README.md"
    } > "$info/METADATA"
    {
        echo "Wheel-Version: 1.0"
        echo "Generator: larder scripts/package.sh"
        echo "Root-Is-Purelib: false"
        for platform in ${tag//./ }; do echo "Tag: py3-none-$platform"; done
    } > "$info/WHEEL"
    mkdir -p "$output"
    "$python" -m wheel pack --dest-dir "$output" "$root" > /dev/null
}

make_root() {
    stage_binary "$output"
    # The loader and the libraries, where the binary looks for them.
    is_static ||
        ldd "$binary" | grep -o '/[^ )]*' | while read -r library; do install -D -m 755 "$library" "$output$library"; done
    install -d -m 1777 "$output/tmp"
    install -d "$output/etc/larder" "$output/dev" "$output/proc"
    # What an engine of containers would mount.
    [ -e "$output/dev/null" ] || mknod -m 666 "$output/dev/null" c 1 3 2>/dev/null || true
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
case "$1" in
deb | rpm | wheel | root) "make_$1" ;;
*) usage ;;
esac
