#!/bin/sh
# A job without PyTorch that can be preempted: counts to $1, 500 by default, ten a second, and keeps its place.
#
#     farside submit --gpus 1 --checkpoint /shared/$USER/count -- examples/count.sh

place="${FARSIDE_CHECKPOINT_DIR:-.}/count.$RANK"
at=0
if [ -n "$FARSIDE_RESUME" ] && [ -e "$place" ]; then
	at=$(cat "$place")
fi

save() {
	# Renamed over, so that the place is whole whatever happens.
	echo "$at" >"$place.part" && mv "$place.part" "$place"
}
trap 'save; echo "stops at $at"; exit 0' TERM

echo "begins at $at"
[ -z "$FARSIDE_READY" ] || echo ready >"$FARSIDE_READY"
while [ "$at" -lt "${1:-500}" ]; do
	sleep 0.1 &
	# A shell hears a signal while it waits, not while it sleeps; that the sleep is terminated too, nobody need read.
	wait $! 2>/dev/null
	at=$((at + 1))
	[ $((at % 50)) -ne 0 ] || save
done
echo "finished at $at"
