"""What serving needs is looked for before anything else is done, and all that is missing is named at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving import __main__ as benchmarks
from farside import installed
from farside.errors import Unavailable
from farside.serve import packages
from farside.serve.deployment import read_deployment
from farside.serve.packages import GRPC_DOOR, check_packages, packages_of

# The packages are here: a finder before all others says that they are not. Nor has anything a version.
WITHOUT = """
import importlib.metadata, sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
def version(name):
    raise importlib.metadata.PackageNotFoundError(name)
sys.meta_path.insert(0, Nowhere())
importlib.metadata.version = version
from farside.cli import main
main()
"""


def without(*missing: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", WITHOUT.format(missing=set(missing)), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def deployment(folder: Path, *lines: str, suffix: str = ".onnx") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"net{suffix}").write_bytes(b"")
    table = ["[model.net]", f'file = "net{suffix}"', "slo_ms = 100", "max_batch = 8"]
    (folder / "serving.toml").write_text("\n".join(['admin_socket = "s"', *lines, *table]))
    return folder


def test_all_that_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda module: module == "grpc")

    with pytest.raises(Unavailable) as caught:
        check_packages((*GRPC_DOOR, "torch", "cuda.bindings"))

    assert str(caught.value) == (
        "these Python packages are not installed: cuda-bindings, hpack, protobuf, torch, tritonclient; "
        "install requirements/serving.txt (.venv/bin/pip install -r requirements/serving.txt); "
        "pip install cuda-bindings torch"
    )
    check_packages(("grpc",))


def test_a_run_ends_before_it_looks_at_profile_and_models(tmp_path: Path) -> None:
    folder = deployment(tmp_path / "d", 'profile = "absent"')

    done = without("hpack", "tritonclient", arguments=("serve", "run", str(folder)))

    assert done.returncode == 1
    assert done.stderr.startswith("farside: these Python packages are not installed: hpack, tritonclient; install req")
    assert len(done.stderr.splitlines()) == 1


def test_a_deployment_needs_what_its_doors_files_and_device_need(tmp_path: Path) -> None:
    both = read_deployment(deployment(tmp_path / "a"), None)
    http = read_deployment(deployment(tmp_path / "b", 'grpc_listen = ""'), None)
    green = read_deployment(deployment(tmp_path / "c", 'device = "green"', 'grpc_listen = ""', suffix=".pt"), None)

    assert packages_of(both, on_this_machine=True) == {*GRPC_DOOR, "onnxruntime"}
    assert packages_of(http, on_this_machine=True) == {"onnxruntime"}
    assert packages_of(green, on_this_machine=True) == {"torch", "cuda.bindings"}
    assert packages_of(green, on_this_machine=False) == {"torch"}


@pytest.mark.parametrize(
    ("parts", "missing", "named"),
    [
        (["green"], {"hpack", "tritonclient", "cuda.bindings"}, "cuda-bindings, hpack, tritonclient"),
        (["shares", "promise"], {"hpack", "onnx"}, "hpack, onnx"),
    ],
)
def test_benchmarks_measure_nothing_where_a_package_is_missing(
    parts: list[str], missing: set[str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*, quick: bool) -> None:
        raise AssertionError("nothing was to be measured")

    monkeypatch.setattr(packages, "is_installed", lambda module: module not in missing)
    monkeypatch.setattr(benchmarks, "PARTS", dict.fromkeys(benchmarks.PARTS, measured))

    assert benchmarks.main([*parts, "--quick"]) == 1
    assert capsys.readouterr().err.startswith(f"these Python packages are not installed: {named}; ")


def test_parts_of_cores_alone_need_no_front() -> None:
    assert benchmarks.packages_of("shares") == {"onnx", "onnxruntime"}
    assert benchmarks.packages_of("mps") == {*GRPC_DOOR, "torch"}


def test_a_source_tree_without_metadata_has_a_version() -> None:
    done = without(arguments=("--version",))

    assert (done.returncode, done.stdout) == (0, f"farside {installed.UNKNOWN}\n")
    assert installed.version_of("no-such-package", "msgspec") != installed.UNKNOWN


def test_a_module_that_is_not_there_is_seen() -> None:
    found = [installed.is_installed(name) for name in ("json", "absent_package.of", "json.absent")]

    assert found == [True, False, False]
