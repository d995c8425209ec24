#!/bin/sh
# Runs the tests of tests/vm/guest/ on this machine, as root. Usage: test.sh [PYTEST OPTION...]
set -eu

cd /opt/farside
FARSIDE_TEST_NETDEV=$(cat /etc/farside/netdev)
export FARSIDE_TEST_NETDEV
# The link of the provisioning would stand in the way of the tests' own.
[ ! -e /sys/class/infiniband/rxe0 ] || rdma link delete rxe0
exec .venv/bin/python -m pytest --confcutdir=tests/vm/guest tests/vm/guest "$@"
