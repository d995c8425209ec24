#!/bin/sh
# Makes a freshly installed root folder a guest: few modules, one key, no services that only cost time.
# Usage: configure.sh ROOT PUBLIC_KEY_FILE
set -eu

root=$1
key=$2
here=$(dirname "$0")
systemd=$root/etc/systemd/system

# --- the kernel's modules: those named and what they depend on
kernel=$(ls "$root/usr/lib/modules")
modules=$root/usr/lib/modules/$kernel
chroot "$root" depmod "$kernel"
wanted=$(mktemp)
trap 'rm -f "$wanted"' EXIT
grep -v '^#' "$here/modules.txt" | while read -r name; do
	# One that is built in has no file, one that this kernel lacks no entry: both are left out.
	chroot "$root" modprobe -S "$kernel" --show-depends "$name" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | sed "s|.*/modules/$kernel/||" | sort -u >"$wanted"
mkdir "$modules.kept"
(cd "$modules" && xargs cp --parents -t "$modules.kept" <"$wanted")
cp "$modules"/modules.builtin "$modules"/modules.builtin.modinfo "$modules"/modules.order "$modules.kept"
rm -rf "$modules"
mv "$modules.kept" "$modules"
chroot "$root" depmod "$kernel"

# --- one key gets in; nobody else reaches the guest's sshd
install -d -m 0700 "$root/root/.ssh"
install -m 0600 "$key" "$root/root/.ssh/authorized_keys"
rm -f "$root"/etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f "$root/etc/ssh/ssh_host_ed25519_key"
{
	printf 'UseDNS no\nUsePAM no\nMaxSessions 100\nMaxStartups 100\n'
	# An emulated processor on a busy host is that much slower than what a sandbox's deadlines are made for.
	echo 'SetEnv FARSIDE_PATIENCE=20'
} >"$root/etc/ssh/sshd_config.d/farside.conf"

# --- farside, from the second disk
mkdir -p "$root/farside"
ln -s /farside/bin/farside "$root/usr/local/bin/farside"
# Before Debian's own packages, so that the pinned versions are found.
mkdir -p "$root/usr/local/lib/python3.11/dist-packages"
echo /farside/site >"$root/usr/local/lib/python3.11/dist-packages/farside.pth"
install -m 0755 "$here/node.py" "$root/usr/local/sbin/farside-node"

# --- what runs
: >"$root/etc/fstab"
echo uninitialized >"$root/etc/machine-id"
printf '127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n10.77.0.3 node3\n' >"$root/etc/hosts"
mkdir -p "$root/etc/systemd/journald.conf.d"
# Kernel messages go to the serial line by themselves; journald's copy of them lives as long as the guest.
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\n' >"$root/etc/systemd/journald.conf.d/farside.conf"
ln -sf /usr/lib/systemd/system/multi-user.target "$systemd/default.target"
install -m 0644 "$here/admin-net.service" "$systemd/admin-net.service"
ln -sf ../admin-net.service "$systemd/multi-user.target.wants/admin-net.service"
grep -v '^#' "$here/masked.txt" | while read -r unit; do ln -sf /dev/null "$systemd/$unit"; done
