"""The rack of this node: as its settings say, or the switches that LLDP finds beside it.

lldpd, where it runs, knows the switch at the other end of each cable; nodes at the same switches stand in one rack. It
is asked by its own program, once in `PERIOD_S`. A cable that is unplugged, or a switch that lldpd has not heard yet,
gives other switches for a while: a node gets another rack only when two looks in a row find the same one. What was
found stays while lldpd is away, and when the agent starts anew.
"""

import hashlib
import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import Any

from farside.log import get_log
from farside.whole_file import write_whole

BY_LLDP = "lldp"
"""The setting by which lldpd is asked."""
PERIOD_S = 60.0
LIMIT_S = 5.0
"""Seconds that lldpctl may take; it asks a daemon of this machine."""
CHARS_MAX = 58
"""The longest name of a rack: with ``rack:`` before it, it is a feature's name."""
DIGEST_CHARS = 12
"""A longer name ends with this much of its SHA-256, so that switches whose names differ there only are told apart."""
SWITCHES = frozenset({"Bridge", "Router"})

_log = get_log("agent.sense")


class RackSense:
    """Reads the rack."""

    def __init__(
        self, setting: str, kept: Path, *, now_s: Callable[[], float], ask: Callable[[], str] | None = None
    ) -> None:
        """``setting``: the rack, `BY_LLDP`, or empty: none; ``ask``: gives what ``lldpctl -f json`` prints.

        ``kept``: the file that keeps what LLDP named.
        """
        self._is_asked = setting == BY_LLDP
        self._kept = kept
        self._ask = ask or _lldpctl
        self._now_s = now_s
        self._next_s = -math.inf
        self._rack = _read(kept) if self._is_asked else setting
        self._last = ""

    def read(self) -> str:
        """The rack; empty: nobody knows. It may take as long as lldpd takes to answer."""
        if self._is_asked and self._now_s() >= self._next_s:
            self._next_s = self._now_s() + PERIOD_S
            found, before = rack_of(self._ask()), self._last
            self._last = found
            if found and found == before and found != self._rack:
                self._take(found)
        return self._rack

    def _take(self, rack: str) -> None:
        _log.info("LLDP names the switches of this node", rack=rack)
        self._rack = rack
        try:
            write_whole(self._kept, f"{rack}\n".encode())
        except OSError as error:
            _log.warning("this node's rack cannot be kept, and is not known after a restart", why=error.strerror)


def rack_of(text: str) -> str:
    """The switches that ``lldpctl -f json`` names, in order with a point between, as one name; empty: none."""
    try:
        names = sorted(set(_switches(json.loads(text)["lldp"]["interface"])))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    # Another character would make it no name of a feature.
    name = re.sub(r"[^A-Za-z0-9_.:-]", "-", ".".join(names))
    if len(name) <= CHARS_MAX:
        return name
    digest = hashlib.sha256(".".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return f"{name[: CHARS_MAX - DIGEST_CHARS - 1]}-{digest}"


def _read(kept: Path) -> str:
    """The rack of before; empty: there was none, or the file is damaged."""
    try:
        name = kept.read_text(errors="replace").strip()
    except OSError:
        return ""
    return name if re.fullmatch(rf"[A-Za-z0-9_.:-]{{1,{CHARS_MAX}}}", name) else ""


def _switches(interfaces: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the neighbours that are switches. lldpctl prints one interface as a table, and several as a list."""
    for one in [interfaces] if isinstance(interfaces, Mapping) else interfaces:
        for told in one.values():
            chassis = told["chassis"]
            # By its name, or without a level for that where it tells none.
            for name, facts in {"": chassis}.items() if "id" in chassis else chassis.items():
                can = facts.get("capability", [])
                able = {cap["type"] for cap in ([can] if isinstance(can, Mapping) else can) if cap.get("enabled")}
                if able & SWITCHES:
                    yield str(name or facts["id"]["value"])


def _lldpctl() -> str:
    """What it prints; nothing where it is not installed, or lldpd does not answer."""
    program = which("lldpctl")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-f", "json"], capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
