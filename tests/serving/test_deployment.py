"""The deployment file: each mistake ends in one line that names the file, the setting and what to do."""

from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile, NoInterference
from farside.serve.deployment import check_for_machine, check_for_manager, profiles_of, read_deployment

GOOD = """
name = "vision"
[model.net]
file = "net.onnx"
slo_ms = 100
rate = 50
"""

LEASED = 'device = "mps"\ngpus_max = 1\nkey_file = "key"\n'


def written(folder: Path, text: str) -> Path:
    (folder / "net.onnx").touch()
    (folder / "serving.toml").write_text(text)
    return folder


def test_a_deployment_of_a_folder_has_tritons_ports_and_its_models(tmp_path: Path) -> None:
    found = read_deployment(written(tmp_path, GOOD), tmp_path)

    assert (found.http, found.grpc, found.metrics) == ("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
    assert found.models["net"].path == tmp_path / "net.onnx"
    assert (found.models["net"].max_batch, found.models["net"].rate) == (32, 50)
    assert found.admin_socket == tmp_path / "vision.sock"


def test_without_a_folder_of_the_users_own_the_admin_socket_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="names no admin_socket, and there is no XDG_RUNTIME_DIR"):
        read_deployment(written(tmp_path, GOOD), None)

    named = read_deployment(written(tmp_path, 'admin_socket = "a.sock"' + GOOD), None)
    assert named.admin_socket == tmp_path / "a.sock"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = [", "is no TOML file"),
        (GOOD.replace("name =", "namo ="), "namo is no setting; did you mean name?"),
        (GOOD.replace("slo_ms", "slo"), "model.net.slo is no setting; did you mean slo_ms?"),
        (GOOD.replace("slo_ms = 100\n", ""), "model.net.slo_ms is missing"),
        (GOOD.replace("= 100", '= "100"'), "model.net.slo_ms: expected float, got str"),
        ("model = {net = 5}", "model.net: expected object, got int"),
        ('name = "vision"', "model is missing"),
        (GOOD + 'max_shape = {"x:0" = 5}', "model.net.max_shape.x:0: expected array, got int"),
        (GOOD + "max_shape = {x = [8, 1.5]}", "model.net.max_shape.x[1]: expected int, got float"),
        (GOOD + "max_shape = 5", "model.net.max_shape: expected object, got int"),
        (GOOD.replace("= 100", "= 0"), "model.net.slo_ms = 0.0 is out of bounds"),
        (GOOD.replace("= 50", "= inf"), "model.net.rate = inf is no rate"),
        (GOOD.replace("= 50", "= -1"), "model.net.rate = -1.0 is no rate"),
        (GOOD + "max_batch = 0", "model.net.max_batch = 0 is out of bounds; give 1 to 1024"),
        (GOOD.replace("net.onnx", "gone.onnx"), "gone.onnx is no file"),
        (GOOD.replace("[model.net]", '[model."a/b"]'), "model.a/b is no name of a model"),
        ("model = {}", "has 0 models"),
        ('device = "mig"' + GOOD, "'mig': an instance is not cut further; use gpu, which takes an instance"),
        ('device = "green"' + GOOD, "model.net.file = 'net.onnx': device = 'green' serves TorchScript files alone"),
        ('device = "mps"\ncpu_devices = [[0]]' + GOOD, "cpu_devices are cores, and device = 'mps' has GPUs"),
        ('device = "gpu"\nprepare_pct = 20' + GOOD, "prepare_pct = 20: device = 'gpu' holds no executor to a part"),
        ('device = "tpu"' + GOOD, "'tpu' is no device"),
        ("prepare_pct = 5" + GOOD, "prepare_pct = 5 is out of bounds; give 10 to 100"),
        ('device = "whole"\nprepare_pct = 20' + GOOD, "prepare_pct = 20: device = 'whole' holds no executor to a part"),
        ('device = "whole"\ncapacity_pct = 80' + GOOD, "capacity_pct = 80: device = 'whole' cuts no cores"),
        ("cpu_devices = [[0], [0]]" + GOOD, "a core twice"),
        ("gpus_max = 1000" + GOOD, "gpus_max = 1000 is out of bounds"),
        ('http_listen = "here"' + GOOD, "http_listen = 'here' is no address"),
        ('http_listen = "tcp:0.0.0.0:80"' + GOOD, "lets others in without TLS"),
        ('metrics_listen = "tcp:0.0.0.0:80"\ntls_cert = "c"\ntls_key = "k"' + GOOD, "metrics have no TLS"),
        (
            'grpc_listen = "tcp:127.0.0.1:8000"' + GOOD,
            "http_listen = 'tcp:127.0.0.1:8000' and grpc_listen = 'tcp:127.0.0.1:8000' can't both listen; give one",
        ),
        (
            'plain_http = true\nmetrics_listen = "tcp:0.0.0.0:8001"' + GOOD,
            "grpc_listen = 'tcp:127.0.0.1:8001' and metrics_listen = 'tcp:0.0.0.0:8001' can't both listen",
        ),
        ('http_listen = ""\ngrpc_listen = ""' + GOOD, "http_listen and grpc_listen are both empty, so no request can"),
        ('admin_socket = "net.onnx"' + GOOD, "net.onnx: a file that is no socket is there; name another path"),
        ('admin_socket = "net.onnx/s"' + GOOD, "net.onnx/s: Not a directory; name another path"),
        (f'admin_socket = "{"a" * 107}"' + GOOD, "is longer than the 107 bytes of a unix socket's path; name"),
        ('tls_cert = "c.pem"' + GOOD, "tls_cert and tls_key go together"),
        ('token_file = "gone"' + GOOD, "can't be read; name a file of tokens"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_deployment(written(tmp_path, text), tmp_path)

    assert line in str(raised.value)
    assert str(tmp_path / "serving.toml") in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("key", "value"), [("qos", '"serving"'), ("lease_s", "100")])
def test_what_only_leases_have_is_refused_on_a_machine(tmp_path: Path, key: str, value: str) -> None:
    deployment = read_deployment(written(tmp_path, f"{key} = {value}{GOOD}"), tmp_path)

    with pytest.raises(
        ConfigError, match=rf"{key} is of a deployment on a manager's nodes; .* name a manager by --manager"
    ):
        check_for_machine(deployment)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "device = 'auto': on a manager's nodes it has to be named; device = 'cpu' serves on CPU cores"),
        ('device = "cpu"', "names no cpu_devices"),
        ('device = "mps"', "names no gpus_max"),
        ('device = "cpu"\ncpu_devices = [[0]]', "names no gpus_max"),
        ('device = "cpu"\ncpu_devices = [[0]]\ngpus_max = 2', "names no key_file"),
        (f"{LEASED}lease_s = 39", "lease_s = 39 is out of bounds; give 40 to "),
        (
            f"{LEASED}lease_s = 100",
            "replace_before_s = 600, its default, is more than half of lease_s = 100; give replace_before_s up to 50",
        ),
        (
            f"{LEASED}replace_before_s = 50000",
            "replace_before_s = 50000 is more than half of lease_s = 86400, its default; give replace_before_s up",
        ),
        (
            f"{LEASED}lease_s = 60\nreplace_before_s = 40",
            "replace_before_s = 40 is more than half of lease_s = 60; give replace_before_s up to 30, or",
        ),
        (f"{LEASED}replace_before_s = 19", "replace_before_s = 19 is out of bounds; give 20 to "),
        (f"{LEASED}spare_gpus = -1", "spare_gpus = -1 is out of bounds; give 0 to 64"),
        (f'{LEASED}memory = "much"', "memory: "),
    ],
)
def test_what_leases_need_is_asked_for_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    deployment = read_deployment(written(tmp_path, text + GOOD), tmp_path)

    with pytest.raises(ConfigError) as raised:
        check_for_manager(deployment)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_plain_http_lets_others_in_where_it_is_said(tmp_path: Path) -> None:
    text = 'http_listen = "tcp:0.0.0.0:80"\nplain_http = true' + GOOD

    assert read_deployment(written(tmp_path, text), tmp_path).http == "0.0.0.0:80"


def test_doors_may_all_have_a_port_of_the_kernels_choice_or_be_shut(tmp_path: Path) -> None:
    text = 'http_listen = "tcp:127.0.0.1:0"\ngrpc_listen = "tcp:127.0.0.1:0"\nmetrics_listen = ""' + GOOD
    found = read_deployment(written(tmp_path, text), tmp_path)

    assert (found.http, found.grpc, found.metrics) == ("127.0.0.1:0", "127.0.0.1:0", "")


def test_tokens_that_all_may_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# ours\nsesame\n")
    folder = written(tmp_path, 'token_file = "tokens"' + GOOD)
    (tmp_path / "tokens").chmod(0o644)
    with pytest.raises(ConfigError, match="all users may read it; chmod o="):
        read_deployment(folder, tmp_path)

    (tmp_path / "tokens").chmod(0o600)
    assert read_deployment(folder, tmp_path).tokens == ("sesame",)


def profiled(slowest: float, batches: int = 32) -> tuple[dict[str, ModelProfile], DeviceProfile]:
    times = tuple(slowest + 1.0 * at for at in range(batches))
    by_part = {50: tuple(2 * one for one in times), 100: times}
    model = ModelProfile(name="net", slo_ms=1, memory_mb=1, latency_ms=by_part, slowed_ms=by_part)
    device = DeviceProfile(
        name="d", cuts=((100,), (50, 50)), memory_mb=100, process_mb=1, interference=NoInterference()
    )
    return {"net": model}, device


def test_an_slo_that_no_batch_can_meet_is_named_with_the_shortest_that_can(tmp_path: Path) -> None:
    deployment = read_deployment(written(tmp_path, GOOD), tmp_path)

    with pytest.raises(ConfigError, match=r"slo_ms = 100 can never be met; it needs at least 120.6 ms"):
        profiles_of(deployment, tmp_path, *profiled(60.3))


def test_a_profile_gets_the_slo_and_the_largest_batch_of_the_deployment(tmp_path: Path) -> None:
    deployment = read_deployment(written(tmp_path, GOOD + "max_batch = 8"), tmp_path)

    found, _ = profiles_of(deployment, tmp_path, *profiled(10.0))

    assert (found["net"].slo_ms, found["net"].max_batch) == (100, 8)


def test_a_model_or_batch_without_a_profile_is_refused(tmp_path: Path) -> None:
    deployment = read_deployment(written(tmp_path, GOOD), tmp_path)
    models, device = profiled(10.0, batches=16)

    with pytest.raises(ConfigError, match=r"max_batch = 32 was not profiled; .* has batches up to 16"):
        profiles_of(deployment, tmp_path, models, device)
    with pytest.raises(ConfigError, match=r"model.net has no profile in .*; there are other"):
        profiles_of(deployment, tmp_path, {"other": models["net"]}, device)
