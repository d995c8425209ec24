#!/bin/busybox sh
# shellcheck shell=dash
# First process of the initrd: loads what the root disk needs, then hands over to systemd.
# `farside.probe` on the kernel's command line: say that this machine can run a kernel, and switch off.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
if $b grep -qw farside.probe /proc/cmdline; then
	echo "farside-probe: a kernel runs here" >/dev/ttyS0
	$b poweroff -f
fi
for module in $($b ls /modules/*.ko); do $b insmod "$module"; done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do
	$b sleep 0.05
	tries=$((tries + 1))
done
$b mount -t ext4 -o rw,noatime /dev/vda /newroot || exec $b sh
$b mount --move /dev /newroot/dev
$b umount /proc
$b umount /sys
exec $b switch_root /newroot /sbin/init
