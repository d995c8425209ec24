"""Devices of a deployment: each starts executors on parts of it, on this machine or at a worker elsewhere."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from farside.agent.serving.executor import start_executor
from farside.agent.serving.handle import ExecutorHandle, OnDone, OnExit
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.cpu import threads_of
from farside.agent.serving.partition.policy import Device, Driver
from farside.agent.serving.remote import Address, RemotePart, start_remote_executor
from farside.log import get_log
from farside.serve.failures import LEFT_OUT_S, Failures
from farside.serve.profile.folder import Fingerprint

_log = get_log("serve.devices")


class Site(Protocol):
    """A device, wherever it is."""

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        """Whether a part may get another size under its executor."""
        ...

    async def start(
        self, part_pct: int, models: Sequence[ModelFile], on_done: OnDone, on_exit: OnExit,
        *, p99_s: Mapping[str, float], prepare_s: float, prepare_pct: int,
    ) -> ExecutorHandle:  # fmt: skip
        """An executor on a part of it, which has ``prepare_pct`` of the device at most until it is ready.

        Raises:
            FarsideError: There is none; one line of why.
        """
        ...


class LocalSite:
    """A device of this machine."""

    def __init__(self, driver: Driver, device: Device) -> None:
        self._driver, self._device = driver, device

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        """Where the driver can, and the executor needs as many threads as before."""
        return self._driver.traits.can_resize and _keeps_threads(self._device, from_pct, to_pct)

    async def start(
        self, part_pct: int, models: Sequence[ModelFile], on_done: OnDone, on_exit: OnExit,
        *, p99_s: Mapping[str, float], prepare_s: float, prepare_pct: int,
    ) -> ExecutorHandle:  # fmt: skip
        """A process here."""
        place = self._driver.open(self._device, part_pct)
        return await start_executor(
            place, models, on_done, on_exit, p99_s=p99_s, prepare_s=prepare_s, prepare_pct=prepare_pct
        )


class RemoteSite:
    """A device that a worker has.

    Args:
        address: The worker's.
        driver_name: How the worker cuts it.
        device: As its driver knows it there.
        profiled: What the profile is of: the worker refuses another device, and other versions of frameworks. None:
            that is not known.
    """

    def __init__(self, address: Address, driver_name: str, device: Device, profiled: Fingerprint | None) -> None:
        self._address, self._driver_name, self._device = address, driver_name, device
        self._profiled = profiled

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        """Where its driver can, and the executor needs as many threads as before."""
        return DRIVERS[self._driver_name].traits.can_resize and _keeps_threads(self._device, from_pct, to_pct)

    async def start(
        self, part_pct: int, models: Sequence[ModelFile], on_done: OnDone, on_exit: OnExit,
        *, p99_s: Mapping[str, float], prepare_s: float, prepare_pct: int,
    ) -> ExecutorHandle:  # fmt: skip
        """A process there."""
        part = RemotePart(self._driver_name, self._device, part_pct)
        if self._profiled is not None:
            part = part._replace(device_name=self._profiled.name, runtimes=self._profiled.runtimes)
        return await start_remote_executor(
            self._address, part, models, on_done, on_exit, p99_s=p99_s, prepare_s=prepare_s, prepare_pct=prepare_pct
        )


def _keeps_threads(device: Device, from_pct: int, to_pct: int) -> bool:
    return threads_of(from_pct, len(device.cores)) == threads_of(to_pct, len(device.cores))


class Devices(Protocol):
    """The devices that a deployment has, by the numbers that plans call them."""

    @property
    def most(self) -> int:
        """How many it may ever have."""
        ...

    @property
    def usable(self) -> Collection[int]:
        """Those on which executors may be started, and stay for some time."""
        ...

    @property
    def are_leased(self) -> bool:
        """Whether they come and go as they are asked for; none is there before."""
        ...

    @property
    def lacking(self) -> str:
        """Why not all can be used, or what says so; empty where all can."""
        ...

    def want(self, count: int) -> None:
        """Takes how many are needed from now on."""
        ...

    def failed(self, number: int, why: str) -> None:
        """Takes that an executor could not be started on one on which none runs."""
        ...


class OwnDevices:
    """Devices of this machine: one on which no executor can be started is left out for a while, longer each time.

    Args:
        count: How many there are.
        serves: Whether an executor runs on a device, which then is not left out.
        clock_s: Seconds that never go back.
    """

    are_leased = False

    def __init__(
        self, count: int, serves: Callable[[int], bool] = lambda _: False, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = count
        self._serves, self._clock_s = serves, clock_s
        self._failures: dict[int, Failures] = {}
        self._whys: dict[int, str] = {}

    @property
    def usable(self) -> frozenset[int]:
        """Those on which executors may be started now."""
        return frozenset(range(self.most)) - self._left_out()

    @property
    def lacking(self) -> str:
        """Which are left out, and why."""
        left_out = sorted(self._left_out())
        return "; ".join(f"no executor starts on device {number}: {self._whys[number]}" for number in left_out)

    def want(self, count: int) -> None:
        """They are there anyway."""

    def failed(self, number: int, why: str) -> None:
        """Leaves a device out for a while, as no executor could be started there."""
        now_s, failures = self._clock_s(), self._failures.get(number, Failures())
        self._whys[number] = why
        if now_s < failures.until_s:
            return
        failures = self._failures[number] = failures.and_one(now_s, LEFT_OUT_S)
        _log.warning(
            "a device is left out: no executor starts there", gpu=number, why=why,
            again_in_s=failures.until_s - now_s, failures=failures.count,
        )  # fmt: skip

    def _left_out(self) -> frozenset[int]:
        now_s = self._clock_s()
        return frozenset(
            number for number, one in self._failures.items() if now_s < one.until_s and not self._serves(number)
        )
