#!/bin/sh
# Serves a block device from the donors' memory. Usage: borrower.sh NAME ADDRESS SIZE DONOR=ADDRESS...
set -eu

name=$1
size=$3
shift 3
for donor in "$@"; do
	printf '[[donor]]\nnode = "%s"\ncontrol = "tcp:%s:7677"\n' "${donor%%=*}" "${donor#*=}"
done >/etc/farside/peers.toml
install -d -m 0700 /var/lib/farside
cat >/etc/farside/blockdev.toml <<EOF
node = "$name"
size_bytes = "$size"
disk_path = "/var/lib/farside/swap0.img"
EOF
farside config check --for blockdev
if grep -q '^/dev/nbd' /proc/swaps; then
	echo "swap on /dev/nbdX is on: swapoff first, or the machine dies with the server" >&2
	exit 1
fi
# Again at each provisioning, since the code may be another.
systemctl stop farside-blockdev 2>/dev/null || true
systemctl reset-failed farside-blockdev 2>/dev/null || true
systemd-run --unit=farside-blockdev --property=Restart=on-failure --property=RuntimeDirectory=farside \
	--property=RuntimeDirectoryPreserve=yes --property=KillMode=mixed /usr/local/bin/farside blockdev
