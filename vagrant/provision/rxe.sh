#!/bin/sh
# Makes soft RDMA device rxe0 of the network device that has this address, and notes which that is. Usage: rxe.sh ADDRESS
set -eu

address=$1
[ ! -e /sys/class/infiniband/rxe0 ] || exit 0
netdev=$(ip -oneline -4 addr show | awk -v address="$address" '$4 ~ "^" address "/" { print $2; exit }')
[ -n "$netdev" ] || { echo "no network device has the address $address" >&2; exit 1; }
echo "$netdev" >/etc/farside/netdev
modprobe rdma_rxe
rdma link add rxe0 type rxe netdev "$netdev"
