#!/bin/sh
# Puts promtool of Debian's prometheus package at the named path. Installing the package would start a server.
# Usage: tools/extract_promtool.sh PATH
set -eu

target=$(realpath "$1")
[ -x "$target" ] && exit 0
if found=$(command -v promtool); then
	ln -sf "$found" "$target"
	exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
	echo "farside: no promtool, and this is not Debian: the tests of metrics' names are skipped" >&2
	exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# Root drops to the user _apt for downloads, which must be able to write here.
chmod 0755 "$folder"
download() { apt-get download -qq -o APT::Sandbox::User=root prometheus >log 2>&1; }
if { download || { apt-get update -qq >log 2>&1 && download; }; } && dpkg-deb -x prometheus_*.deb unpacked; then
	install -m 0755 unpacked/usr/bin/promtool "$target"
else
	tail -n 5 log >&2
	echo "farside: promtool could not be had from Debian: the tests of metrics' names are skipped" >&2
fi
