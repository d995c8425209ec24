#!/bin/sh
# mmdebstrap's hook: unpacks Debian's kernel package into the new root, without running its scripts (they would make an
# initrd that nobody uses). Usage: fetch_kernel.sh ROOT
set -eu

root=$1
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
package=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
[ -n "$package" ] || { echo "no linux-image-amd64 in this archive" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# Root drops to the user _apt for downloads, which must be able to write here.
chmod 0755 "$folder"
apt-get download -qq -o APT::Sandbox::User=root "$package"
dpkg-deb -x linux-image-*.deb unpacked
mkdir -p "$root/usr/lib/modules"
mv unpacked/lib/modules/* "$root/usr/lib/modules/"
mv unpacked/boot/vmlinuz-* "$root/boot/"
