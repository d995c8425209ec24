"""Devices of a deployment: each starts executors on parts of it, on this machine or at a worker elsewhere."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from farside.agent.serving.executor import start_executor
from farside.agent.serving.handle import ExecutorHandle, OnDone, OnExit
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.catalog import DRIVERS
from farside.agent.serving.partition.cpu import threads_of
from farside.agent.serving.partition.policy import Device, Driver
from farside.agent.serving.remote import Address, RemotePart, start_remote_executor


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
        device_name: What it has to be, as the profile says; empty: whatever it is.
    """

    def __init__(self, address: Address, driver_name: str, device: Device, device_name: str) -> None:
        self._address, self._driver_name, self._device = address, driver_name, device
        self._device_name = device_name

    def can_resize(self, from_pct: int, to_pct: int) -> bool:
        """Where its driver can, and the executor needs as many threads as before."""
        return DRIVERS[self._driver_name].traits.can_resize and _keeps_threads(self._device, from_pct, to_pct)

    async def start(
        self, part_pct: int, models: Sequence[ModelFile], on_done: OnDone, on_exit: OnExit,
        *, p99_s: Mapping[str, float], prepare_s: float, prepare_pct: int,
    ) -> ExecutorHandle:  # fmt: skip
        """A process there."""
        part = RemotePart(self._driver_name, self._device, part_pct, self._device_name)
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
    def may_change(self) -> bool:
        """Whether they come and go."""
        ...

    def want(self, count: int) -> None:
        """Takes how many are needed from now on."""
        ...

    def failed(self, number: int, why: str) -> None:
        """Takes that an executor could not be started on one on which none runs."""
        ...


class OwnDevices:
    """Devices of this machine, which stay."""

    may_change = False

    def __init__(self, count: int) -> None:
        self.most = count
        self.usable = range(count)

    def want(self, count: int) -> None:
        """They are there anyway."""

    def failed(self, number: int, why: str) -> None:
        """There is no other one in its place."""
