"""Knobs of an idle node: governors in a made-up sysfs, power caps of a made-up NVML."""

import asyncio
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from farside.errors import Unavailable
from farside.scheduler.power.driver.cpu_governor import CpuGovernor
from farside.scheduler.power.driver.idle_saver import Savers
from farside.scheduler.power.idle_saving import RestCommand
from tests.support.programs import Outcome, need

HERE = Path(__file__).parent


def sysfs(root: Path, *governors: str) -> list[Path]:
    files = []
    for at, governor in enumerate(governors):
        folder = root / f"devices/system/cpu/cpufreq/policy{at}"
        folder.mkdir(parents=True)
        (folder / "scaling_available_governors").write_text("performance powersave\n")
        files.append(folder / "scaling_governor")
        files[-1].write_text(governor + "\n")
    return files


def test_governors_are_turned_down_and_back_to_what_they_were(tmp_path: Path) -> None:
    files = sysfs(tmp_path, "performance", "powersave", "performance")
    knob = CpuGovernor(root=tmp_path)

    knob.rest()
    knob.rest()
    assert {file.read_text().strip() for file in files} == {"powersave"}
    knob.resume()
    knob.resume()

    assert [file.read_text().strip() for file in files] == ["performance", "powersave", "performance"]


def test_a_governor_that_somebody_else_set_meanwhile_is_left_alone(tmp_path: Path) -> None:
    (file,) = sysfs(tmp_path, "performance")
    (file.parent / "scaling_available_governors").write_text("performance powersave ondemand\n")
    knob = CpuGovernor(root=tmp_path)
    knob.rest()
    file.write_text("ondemand\n")

    knob.resume()

    assert file.read_text() == "ondemand\n"


def test_a_machine_without_cpufreq_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no cpufreq"):
        CpuGovernor(root=tmp_path).rest()


def test_a_governor_that_one_domain_lacks_is_set_nowhere(tmp_path: Path) -> None:
    first, second = sysfs(tmp_path, "performance", "performance")
    (second.parent / "scaling_available_governors").write_text("performance\n")

    with pytest.raises(Unavailable, match="no governor 'powersave'"):
        CpuGovernor(root=tmp_path).rest()

    assert first.read_text().strip() == "performance"


class Knob:
    """A knob that may be stuck. ``turned``: down."""

    def __init__(self, *, stuck: str = "") -> None:
        self.name = "knob"
        self.turned = False
        self.stuck = stuck

    def rest(self) -> None:
        self._turn("rest", to=True)

    def resume(self) -> None:
        self._turn("resume", to=False)

    def _turn(self, what: str, *, to: bool) -> None:
        if what in self.stuck:
            raise Unavailable(f"{what} is stuck")
        self.turned = to


def test_all_knobs_are_turned_or_none() -> None:
    good, bad = Knob(), Knob(stuck="rest")

    with pytest.raises(Unavailable, match="rest is stuck"):
        asyncio.run(Savers([good, bad])("n1", RestCommand.REST))

    assert not good.turned


def test_a_knob_that_is_stuck_does_not_keep_the_others_down() -> None:
    bad, good = Knob(stuck="resume"), Knob()
    savers = Savers([bad, good])
    asyncio.run(savers("n1", RestCommand.REST))

    with pytest.raises(Unavailable, match="resume is stuck"):
        asyncio.run(savers("n1", RestCommand.RESUME))

    assert not good.turned


# In a process of its own: a library that is loaded once stays.
_USE = """
import sys
from farside.errors import Unavailable
from farside.scheduler.power.driver.gpu_cap import GpuCap
watts, steps = sys.argv[1], sys.argv[2:]
cap = GpuCap(float(watts) if watts else None)
try:
    for step in steps:
        getattr(cap, step)()
except Unavailable as error:
    sys.exit(f"unavailable: {error}")
"""


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("gcc")
    pytest.importorskip("pynvml", reason="not installed: nvidia-ml-py")
    folder = tmp_path_factory.mktemp("nvml")
    argv = ["gcc", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", str(HERE / "nvml_stub.c")]
    subprocess.run(argv, cwd=folder, check=True)
    return folder


def use(nvml: Path, caps: Path, *steps: str, watts: str = "", locked: bool = False) -> Outcome:
    environment = {"LD_LIBRARY_PATH": str(nvml), "NVML_CAPS": str(caps), **({"NVML_LOCKED": "1"} if locked else {})}
    argv = [sys.executable, "-c", _USE, watts, *steps]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return Outcome(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.mark.parametrize(
    ("watts", "steps", "after"),
    [
        ("", ("rest", "rest"), "200000\n200000\n"),
        ("", ("rest", "resume", "resume"), "700000\n350000\n"),
        ("400", ("rest",), "400000\n350000\n"),  # nobody's cap is raised
    ],
)
def test_caps_are_turned_down_and_back(
    nvml: Path, tmp_path: Path, watts: str, steps: tuple[str, ...], after: str
) -> None:
    caps = tmp_path / "caps"
    caps.write_text("700000\n350000\n")

    done = use(nvml, caps, *steps, watts=watts)

    assert (done.status, done.stderr) == (0, "")
    assert caps.read_text() == after


def test_a_cap_that_a_gpu_does_not_take_says_what_it_takes(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text("700000\n")

    done = use(nvml, caps, "rest", watts="50")

    assert "GPU 0 cannot be capped to 50 W; it takes 200 to 700 W" in done.stderr


def test_caps_that_only_root_may_set_say_so(nvml: Path, tmp_path: Path) -> None:
    caps = tmp_path / "caps"
    caps.write_text("700000\n")

    done = use(nvml, caps, "rest", locked=True)

    assert "it takes root" in done.stderr
    assert caps.read_text() == "700000\n"


def test_a_machine_without_nvml_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="not installed: nvidia-ml-py")
    if find_library("nvidia-ml"):
        pytest.skip("this machine has an NVML of its own, whose caps are left alone")

    done = use(tmp_path, tmp_path / "caps", "rest")

    assert "NVML does not start" in done.stderr
