"""What a kernel complains of: pure. Lines that no passing test can excuse."""

import re

# Messages begin after the time stamp and at most one "watchdog: "; what a program writes ("systemd[1]: WARNING") is its
# own affair. Stalls of RCU are left out: a host that is busy elsewhere for 21 s makes them.
_FAULT = re.compile(
    r"""^(?:<\d+>)?(?:\[[^\]]*\]\s*)?(?:\w+:\s)?
    (?: BUG:
      | WARNING:
      | kernel\ BUG\ at
      | Oops:
      | general\ protection\ fault
      | Kernel\ panic
      | INFO:\ task\ .*\ blocked\ for\ more\ than
      | INFO:\ possible\ (?:recursive|circular|irq)
      | INFO:\ (?:inconsistent|lockdep)
      | =+\[\ cut\ here
      | possible\ (?:recursive|circular)\ locking
      | inconsistent\ lock\ state
      | unregister_netdevice:\ waiting
      | list_(?:add|del)\ corruption
      | Bad\ page\ state
      | page\ allocation\ failure.*GFP_ATOMIC.*order:0
    )""",
    re.VERBOSE,
)


def faults(log: str) -> tuple[str, ...]:
    """Lines of a kernel log (dmesg, or a serial console) that tell of a fault in the kernel, each once, in order."""
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if _FAULT.match(line.strip())))
