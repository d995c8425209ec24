"""The harness by hand.

python -m tests.vm.harness image        build image and snapshot, where that can be done
python -m tests.vm.harness up [COUNT]   one to three guests to play with, until Ctrl-C
"""

import shlex
import signal
import sys
import time

from farside.errors import FarsideError, Unavailable
from tests.vm.harness.image import is_built
from tests.vm.harness.machine import Spec
from tests.vm.harness.network import Workshop, network, ready_snapshot, workshop


def main() -> int:
    """0, or 1 with the reason on standard error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    verb, *rest = sys.argv[1:] or ["help"]
    if verb not in ("image", "up") or len(rest) > 1 or not all(word.isdigit() for word in rest):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if verb == "up":
            with workshop() as shop:
                _up(shop, int(rest[0]) if rest else 1)
        else:
            _prepare()
    except Unavailable as error:
        # What needs guests is skipped here, and says the same.
        print(f"farside: no virtual machines: {error}", file=sys.stderr)
        return 1 if verb == "up" else 0
    except FarsideError as error:
        print(f"farside: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _prepare() -> None:
    began_s = time.monotonic()
    if not is_built():
        print("farside: building the guests' image (2 to 4 minutes, kept for the next time)", flush=True)
    with workshop(with_payload=False) as shop:
        ready_snapshot(shop, Spec(accelerator=shop.accelerator))
        print(f"farside: guests are ready ({shop.accelerator.name}) after {time.monotonic() - began_s:.0f} s")


def _up(shop: Workshop, count: int) -> None:
    with network(shop, count) as guests:
        for guest in guests:
            print(f"{guest.name} {guest.address}: {shlex.join(guest.remote.argv('bash -l')[:-1])}", flush=True)
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
