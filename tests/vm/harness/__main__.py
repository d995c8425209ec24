"""`python -m tests.vm.harness image`: build image and snapshot. `... up [COUNT]`: guests to play with, until Ctrl-C."""

import shlex
import signal
import sys
import time

from farside.errors import FarsideError
from tests.vm.harness.machine import Spec
from tests.vm.harness.network import Workshop, network, ready_snapshot, workshop


def main() -> int:
    """0, or 1 with the reason on standard error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    verb, *rest = sys.argv[1:] or ["help"]
    if verb not in ("image", "up") or len(rest) > 1 or not all(word.isdigit() for word in rest):
        print(__doc__, file=sys.stderr)
        return 2
    began_s = time.monotonic()
    try:
        with workshop() as shop:
            if verb == "up":
                _up(shop, int(rest[0]) if rest else 1)
            else:
                saved = ready_snapshot(shop, Spec(accelerator=shop.accelerator))
                print(f"{saved} after {time.monotonic() - began_s:.0f} s, {shop.accelerator.name}")
    except FarsideError as error:
        print(f"farside: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _up(shop: Workshop, count: int) -> None:
    with network(shop, count) as guests:
        for guest in guests:
            print(f"{guest.name} {guest.address}: {shlex.join(guest.remote.argv('bash -l')[:-1])}", flush=True)
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
