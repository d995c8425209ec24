"""swapon and swapoff: the flags of the kernel's header, progress, errors and interrupts; no swap is touched."""

import errno
import signal
import threading

import pytest

from farside.errors import ConfigError, FarsideError
from farside.kmod_shim.swap import call as swap_call
from farside.kmod_shim.swap.call import progress_line, swap_flags, swap_off, swap_on
from farside.units import MIB

AREA = "/nowhere/area"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_call, "PERIOD_S", 0.01)


def test_flags_are_the_kernels() -> None:
    # SWAP_FLAG_PREFER | 100; and with SWAP_FLAG_DISCARD | SWAP_FLAG_DISCARD_PAGES, as swapon --discard=pages does
    assert swap_flags(priority=100, discard=False) == 0x8064
    assert swap_flags(priority=32767, discard=True) == 0x5FFFF


def test_what_the_kernel_refuses_is_told_with_the_device() -> None:
    with pytest.raises(ConfigError, match=f"swapon {AREA}"):
        swap_on(AREA, priority=1, discard=True)
    with pytest.raises(ConfigError, match=f"swapoff {AREA}"):
        swap_off(AREA, used_bytes=lambda: None, tell=lambda now: None)


def test_progress_is_told_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    left = [3 * MIB, 2 * MIB, MIB]
    told: list[int] = []
    monkeypatch.setattr(swap_call, "_call", lambda *_: done.wait())

    def used_bytes() -> int:
        if len(left) == 1:
            done.set()
        return left.pop(0) if len(left) > 1 else left[0]

    swap_off(AREA, used_bytes=used_bytes, tell=told.append)

    assert told[:2] == [3 * MIB, 2 * MIB]


def test_an_interrupt_ends_the_call_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    poked = threading.Event()

    def call(*_: object) -> None:
        poked.wait()
        raise FarsideError(f"swapoff {AREA}: interrupted")

    def used_bytes() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(swap_call, "_call", call)
    monkeypatch.setattr(signal, "pthread_kill", lambda *_: poked.set())
    before = signal.getsignal(signal.SIGUSR1)

    with pytest.raises(FarsideError, match="interrupted"):
        swap_off(AREA, used_bytes=used_bytes, tell=lambda now: None)

    assert signal.getsignal(signal.SIGUSR1) == before


def test_an_interrupted_call_says_that_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def swapoff(self, *_: object) -> int:
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EINTR)

    with pytest.raises(FarsideError, match="swap stays on and nothing is lost"):
        swap_off(AREA, used_bytes=lambda: None, tell=lambda now: None)


def test_what_is_left_is_told_in_bytes_and_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 110.0)

    assert progress_line(before_bytes=100 * MIB, now_bytes=75 * MIB, began_s=100.0) == (
        "75 MiB of 100 MiB still out, about 30 s to go"
    )
    assert progress_line(before_bytes=MIB, now_bytes=MIB, began_s=100.0) == "1 MiB of 1 MiB still out"
