#!/bin/sh
# Installs those of the named Debian packages that are missing. Says in one line why it cannot, where it cannot.
# No daemon that comes with one of them is started: tests start their own, and this machine may be somebody's.
# Usage: tools/install_packages.sh PACKAGE...
set -eu

fail() {
	echo "farside: $*" >&2
	exit 1
}

if ! command -v dpkg-query >/dev/null 2>&1; then
	# Not Debian: trust what is there, and let the build say what it misses.
	[ -n "${FARSIDE_NO_APT:-}" ] && exit 0
	fail "this is not Debian; install what these Debian packages hold, then set FARSIDE_NO_APT=1: $*"
fi

missing=""
for package in "$@"; do
	state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$state" = installed ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ -n "${FARSIDE_NO_APT:-}" ]; then
	echo "farside: going on without:$missing (FARSIDE_NO_APT is set)" >&2
	exit 0
fi
[ "$(id -u)" = 0 ] || fail "not root, and packages are missing; run: sudo apt-get install --no-install-recommends$missing"

echo "farside: installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of names
apt_install() { apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >/dev/null; }
log=$(mktemp)
made=""
trap 'rm -f "$log" $made' EXIT
trap 'exit 1' HUP INT TERM
# What Debian's packages ask before they start anything; 101 is "no". One that is there already has its reasons.
policy=${FARSIDE_POLICY_RC_D:-/usr/sbin/policy-rc.d}
if ! [ -e "$policy" ]; then
	made=$policy
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
# DPkg::Lock::Timeout does not cover the package lists, which a machine that has just started often updates itself.
tries=60
until { apt-get update -qq && apt_install; } >"$log" 2>&1; do
	tries=$((tries - 1))
	if [ "$tries" = 0 ] || ! grep -q "lists/lock" "$log"; then
		tail -n 20 "$log" >&2
		fail "apt-get could not install:$missing"
	fi
	sleep "${FARSIDE_APT_RETRY_S:-5}"
done
