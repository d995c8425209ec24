"""Members as processes of their own, forked from one that has imported PyTorch: `python -m` this with cases as JSON."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from tests.training.models import Convolutions, Transformer, made, parameters_of, torch

KINDS = {"convolutions": Convolutions, "transformer": Transformer}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
LIMIT_S = 900.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    Attributes:
        door: "server", "worker", "ddp": DistributedDataParallel with our hook; "gloo": without.
        service: The Aggregators.
    """

    name: str
    kind: str
    optimizer: str
    door: str
    members: int
    steps: int
    folder: str
    service: tuple[str, ...] = ()
    device: str = "cpu"

    @property
    def path(self) -> Path:
        """Where its members leave files."""
        return Path(self.folder)

    def results(self) -> list[Any]:
        """Parameters of all members."""
        return [torch.load(self.path / f"{self.name}.{rank}", map_location="cpu") for rank in range(self.members)]


def run_cases(cases: Sequence[Case]) -> None:
    """Train them one after the other; raises where a member fails."""
    encoded = msgspec.json.encode(cases).decode()
    subprocess.run([sys.executable, "-m", __name__, encoded], check=True, timeout=LIMIT_S)


def _main() -> None:
    # What takes seconds to import is imported once: an optimizer brings PyTorch's compiler along.
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    import_module("farside.training.ddp")
    failed = []
    for case in msgspec.json.decode(sys.argv[1], type=list[Case]):
        members = [_forked(case, rank) for rank in range(case.members)]
        failed += [f"{case.name} rank {rank}" for rank, pid in enumerate(members) if os.waitpid(pid, 0)[1]]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def _forked(case: Case, rank: int) -> int:
    pid = os.fork()
    if not pid:
        try:
            _member(case, rank)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def _member(case: Case, rank: int) -> None:
    model = made(KINDS[case.kind], seed=rank if case.door in ("server", "worker") else 0).to(case.device)
    ran, optimizer, end = _DOORS[case.door](case, rank, model)
    for iteration in range(case.steps):
        optimizer.zero_grad()
        type(model).loss(Called(ran, model), rank, iteration).backward()
        optimizer.step()
    end()
    torch.save(parameters_of(model), case.path / f"{case.name}.{rank}")
    # It ends here: a group of gloo that is destroyed may wait, with Python's lock, for a thread that wants the lock.
    # Python's own end takes as long as the training besides, and has a test of its own.
    os._exit(0)


class Called:
    """Calls one model, and has the parameters of another."""

    def __init__(self, ran: Any, model: Any) -> None:
        self._ran, self.parameters = ran, model.parameters

    def __call__(self, inputs: Any) -> Any:
        """What the one makes of it."""
        return self._ran(inputs)


def _told(case: Case, rank: int) -> dict[str, Any]:
    key = case.path / "key"
    return {"service": case.service, "key_file": key, "job": case.name, "rank": rank, "members": case.members}


def _attached(case: Case, rank: int, model: Any) -> tuple[Any, Any, Callable[[], None]]:
    import farside

    optimizer = OPTIMIZERS[case.optimizer](model.parameters())
    handle = farside.attach(
        model,
        optimizer,
        update="server" if case.door == "server" else "worker",
        find_unused_parameters=case.kind == "transformer",
        **_told(case, rank),
    )
    return model, optimizer, handle.wait


def _distributed(case: Case, rank: int, model: Any) -> tuple[Any, Any, Callable[[], None]]:
    # With the hook each member is a group of its own: nothing but the Aggregators joins them.
    is_alone = case.door == "ddp"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{case.path}/{case.name}.group{rank if is_alone else ''}",
        rank=0 if is_alone else rank,
        world_size=1 if is_alone else case.members,
    )
    wrapped = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=case.kind == "transformer")
    if is_alone:
        from farside.training import ddp

        wrapped.register_comm_hook(ddp.state(model, **_told(case, rank)), ddp.hook)
    optimizer = OPTIMIZERS[case.optimizer](wrapped.parameters())
    return wrapped, optimizer, torch.distributed.destroy_process_group


_DOORS = {"server": _attached, "worker": _attached, "ddp": _distributed, "gloo": _distributed}

if __name__ == "__main__":
    _main()
