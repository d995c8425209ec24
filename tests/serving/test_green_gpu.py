"""A GPU in green contexts, with stand-ins for PyTorch and for the two kinds of the package cuda-bindings."""

import contextlib
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SMS = 132
PIECE_SMS = 8


class Bindings(ModuleType):
    """cuda.bindings.driver for a GPU of 132 SMs; a package of CUDA 12 does not tell the least piece."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, told: dict[str, int]) -> None:
        super().__init__("cuda.bindings.driver")
        self._told = told

    def cuDeviceGet(self, number: int) -> tuple[int, int]:  # noqa: N802
        return 0, number

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[int, SimpleNamespace]:  # noqa: N802
        return 0, SimpleNamespace(sm=SimpleNamespace(smCount=SMS, **self._told))

    def cuDevSmResourceSplitByCount(  # noqa: N802
        self, groups: int, whole: SimpleNamespace, flags: int, least: int
    ) -> tuple[int, list[SimpleNamespace], int, SimpleNamespace]:
        assert least >= 1
        size = -(-least // PIECE_SMS) * PIECE_SMS
        made = min(groups, (SMS - 12) // size)
        pieces = [SimpleNamespace(sm=SimpleNamespace(smCount=size if at < made else 0)) for at in range(groups)]
        return 0, pieces, made, whole

    def cuDevResourceGenerateDesc(self, pieces: list[SimpleNamespace], count: int) -> tuple[int, int]:  # noqa: N802
        return 0, count

    def cuGreenCtxCreate(self, described: int, device: int, flags: int) -> tuple[int, int]:  # noqa: N802
        return 0, described

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> tuple[int, int]:  # noqa: N802
        return 0, context


def torch() -> Any:
    cuda = SimpleNamespace(
        is_available=lambda: True, init=lambda: None, Stream=lambda: 0, ExternalStream=lambda number: number,
        stream=contextlib.nullcontext,
    )  # fmt: skip
    module: Any = ModuleType("torch")
    module.cuda, module.zeros = cuda, lambda *_, **__: None
    return module


@pytest.mark.parametrize(
    "told", [{"minSmPartitionSize": PIECE_SMS}, {"minSmPartitionSize": 0}, {}], ids=["13", "13 on an old driver", "12"]
)
def test_a_gpu_is_split_by_packages_of_cuda_12_and_13_alike(
    told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings: Any = ModuleType("cuda.bindings")
    bindings.driver = Bindings(told)
    for name, module in {"torch": torch(), "cuda": ModuleType("cuda"), "cuda.bindings": bindings}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "farside.agent.serving.green_gpu", raising=False)

    try:
        gpu = importlib.import_module("farside.agent.serving.green_gpu").GreenGpu()
    finally:
        sys.modules.pop("farside.agent.serving.green_gpu", None)

    assert gpu.granules == 15
    assert (gpu.sms(range(3)), gpu.sms(range(15))) == (24, SMS)
    with gpu.on(range(3)) as stream:
        assert stream == 3
