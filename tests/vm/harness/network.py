"""Guests on a private network that nothing of the host is part of."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm.harness import accelerator, machine, payload, place
from tests.vm.harness.emulator import Emulator
from tests.vm.harness.guest import Guest
from tests.vm.harness.image import Image, ready_image
from tests.vm.harness.machine import PROGRAM, Accelerator, Spec, switch_arguments
from tests.vm.harness.program import HarnessError, need, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """What all guests of a test session are made from."""

    image: Image
    payload: Path
    folder: Path
    accelerator: Accelerator


class Network:
    """Guests by number, from 1, and the switch that joins them (none for a single guest)."""

    def __init__(self, guests: Mapping[int, Guest], switch: Emulator | None) -> None:
        self.guests = guests
        self._switch = switch

    def __getitem__(self, number: int) -> Guest:
        """Guest by number."""
        return self.guests[number]

    def __iter__(self) -> Iterator[Guest]:
        """All guests, by number."""
        return iter(self.guests.values())

    def cut(self, number: int) -> None:
        """Cuts a guest off behind the switch: packets vanish, its own link stays up."""
        self._link(number, up=False)

    def heal(self, number: int) -> None:
        """Joins it again."""
        self._link(number, up=True)

    def judge(self) -> None:
        """Raises `HarnessError` when a kernel complained, whatever the tests said."""
        found = [f"{guest.name}: {line}" for guest in self for line in guest.kernel_faults()]
        if found:
            raise HarnessError("a kernel complained:\n" + "\n".join(found))

    def _link(self, number: int, *, up: bool) -> None:
        assert self._switch is not None, "one guest alone has nothing to be cut from"
        self._switch.set_link(f"port{number}", up=up)


@contextmanager
def workshop(*, with_payload: bool = True) -> Iterator[Workshop]:
    """Image, payload and a folder for one test session; without payload for what wakes no guest.

    Raises:
        Unavailable: This machine cannot build or run guests; says what it lacks.
    """
    need(PROGRAM, "qemu-img", "ssh", "mke2fs", "setpriv")
    image = ready_image()
    with place.scratch_folder() as folder, place.in_use(image.folder):
        chosen = accelerator.choose(image)
        made = payload.build(folder) if with_payload else folder / "no-payload"
        yield Workshop(image=image, payload=made, folder=folder, accelerator=chosen)


@contextmanager
def network(shop: Workshop, count: int, *, memory_mib: int | Sequence[int] = 768, cpus: int = 1) -> Iterator[Network]:
    """`count` guests, each woken from the common snapshot of its kind; all are ended on leaving.

    `memory_mib` is one size for all, or one for each.
    """
    sizes = [memory_mib] * count if isinstance(memory_mib, int) else memory_mib
    specs = {
        number: Spec(accelerator=shop.accelerator, memory_mib=size, cpus=cpus)
        for number, size in zip(range(1, count + 1), sizes, strict=True)
    }
    saved = {number: ready_snapshot(shop, spec) for number, spec in specs.items()}
    folder = Path(tempfile.mkdtemp(prefix="net-", dir=shop.folder))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        ports = {number: folder / f"port{number}" for number in range(1, count + 1)} if count > 1 else {}
        switch = None
        if ports:
            control = folder / "switch.qmp"
            switch = Emulator(switch_arguments(ports, control), control=control, log=folder / "switch.qemu")
            stack.callback(switch.close)
        guests = {number: _guest(shop, spec, folder, number, ports.get(number)) for number, spec in specs.items()}
        for guest in guests.values():
            stack.callback(guest.power_off)
        for number, guest in guests.items():
            guest.begin_waking(saved[number])
        for guest in guests.values():
            guest.end_waking()
        yield Network(guests, switch)


def ready_snapshot(shop: Workshop, spec: Spec) -> Path:
    """A booted guest, saved: kept beside the image, made now (30 to 60 s, emulated) if there is none for this kind."""
    saved = shop.image.folder / f"{spec.name}-{_fits(spec)}.qcow2"
    with place.locked(shop.image.folder / f"{spec.name}.lock"):
        if not saved.exists():
            folder = Path(tempfile.mkdtemp(prefix="snap-", dir=shop.folder))
            payload.blank(folder / "blank")
            guest = Guest(number=100, image=shop.image, spec=spec, payload=folder / "blank", folder=folder, port=None)
            try:
                guest.boot(fresh=True)
                made = guest.save()
                # Copied within the cache first: a rename is whole or not there.
                partial = saved.with_suffix(".work")
                shutil.copyfile(made, partial)
                partial.rename(saved)
            finally:
                guest.power_off()
                shutil.rmtree(folder)
    return saved


def _fits(spec: Spec) -> str:
    """What a snapshot fits besides its spec: the emulator, its arguments, and the processor where that is real."""
    version = run([PROGRAM, "--version"], limit_s=10).split()[3]
    kind = hashlib.sha256(Path(machine.__file__).read_bytes())
    if spec.accelerator is Accelerator.KVM:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
        kind.update(flags.encode())
    return f"{version}-{kind.hexdigest()[:8]}"


def _guest(shop: Workshop, spec: Spec, folder: Path, number: int, port: Path | None) -> Guest:
    return Guest(number=number, image=shop.image, spec=spec, payload=shop.payload, folder=folder, port=port)
