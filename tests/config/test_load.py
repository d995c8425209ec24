"""Files, drop-ins and the command line to one config."""

import os
from inspect import get_annotations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.blockdev.params import make_memory
from farside.config import AgentConfig, BlockdevConfig, DaemonConfig, FaultRule, ManagerConfig, load, load_config
from farside.config.check import NAME_BYTES_MAX, NODE
from farside.config.convert import convert, shown
from farside.config.load import ConfigProblems, effective_config
from farside.config.settings import Setting, settings_of
from farside.daemon.control import messages
from farside.units import GIB, MIB


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def blockdev_problems(folder: Path, text: str) -> tuple[str, ...]:
    path = written(folder, "blockdev.toml", text)
    with pytest.raises(ConfigProblems) as caught:
        load_config(BlockdevConfig, [path])
    return tuple(problem.removeprefix(f"{path}: ") for problem in caught.value.problems)


def test_a_file_is_read_in_human_units(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "blockdev.toml",
        """
        size_bytes = "2GiB"
        pending_bytes = 33554432
        deadline_s = "500ms"
        hedge_s = 0.25
        spin_us = "1ms"
        ewma_alpha = "25%"
        listen = ["unix:/run/a.sock", "tcp:[::1]:10809"]
        protection = "replica"
        """,
    )

    config = load_config(BlockdevConfig, [path])

    assert (config.size_bytes, config.pending_bytes) == (2 * GIB, 32 * MIB)
    assert (config.deadline_s, config.hedge_s, config.spin_us, config.ewma_alpha) == (0.5, 0.25, 1000, 0.25)
    assert config.listen == ("unix:/run/a.sock", "tcp:[::1]:10809")


def test_a_value_that_is_none_hides_no_other_problem(tmp_path: Path) -> None:
    text = """
    listen = ["unix:rel"]
    slab_bytes = "3MiB"
    pending_bytes = "17MiB"
    protection = "none"
    """

    told = [problem.split(":")[0] for problem in blockdev_problems(tmp_path, text)]

    assert told == ["listen", "slab_bytes", "pending_bytes", "i_accept_data_loss"]


@pytest.mark.parametrize("line", ['protection = "replicas"', 'protectoin = "replica"'])
def test_a_rule_about_a_value_that_is_not_known_is_not_told(tmp_path: Path, line: str) -> None:
    (problem,) = blockdev_problems(tmp_path, line)

    assert problem.startswith("protect")


def test_a_fifo_is_refused_and_hangs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "blockdev.toml"
    os.mkfifo(path)

    with pytest.raises(ConfigProblems, match="is a fifo"):
        load_config(BlockdevConfig, [path])


def test_drop_ins_go_before_the_file_and_the_command_line_before_both(tmp_path: Path) -> None:
    path = written(tmp_path, "daemon.toml", 'node = "file"\nmax_slabs = 1\nevict_extra = 1\n')
    written(tmp_path / "daemon.d", "20-site.toml", "max_slabs = 3\n")
    last = written(tmp_path / "daemon.d", "30-machine.toml", "evict_extra = 2\nmax_slabs = 4\n")
    written(tmp_path / "daemon.d", "10-package.toml", "max_slabs = 2\n")

    effective = effective_config(DaemonConfig, [path], {"max_slabs": 5})

    assert (effective.config.node, effective.config.evict_extra, effective.config.max_slabs) == ("file", 2, 5)
    assert [effective.sources[name] for name in ("node", "evict_extra", "max_slabs", "cgroup")] == [
        str(path),
        str(last),
        "command line",
        "default",
    ]


def test_without_files_every_setting_has_its_default() -> None:
    assert load_config(DaemonConfig).slab_bytes == DaemonConfig().slab_bytes == 64 * MIB
    assert load_config(DaemonConfig).node != ""


def test_a_wrong_name_is_told_the_nearest_right_one(tmp_path: Path) -> None:
    assert blockdev_problems(tmp_path, "size_byte = 3") == ("size_byte: no such setting; did you mean 'size_bytes'?",)


def test_all_that_is_wrong_in_a_file_is_told_at_once(tmp_path: Path) -> None:
    problems = blockdev_problems(tmp_path, 'workers = 99\nspin_us = "fast"\nname = 3\nencrypt_disk = "yes"\n')

    assert problems == (
        "workers: must be 1 to 16, is 99",
        "spin_us: 'fast' is not a number with a unit",
        "name: must be text in quotes, is 3",
        "encrypt_disk: must be true or false, is 'yes'",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workers = true", "workers: must be a number of count, is True"),
        ("workers = 1.5", "workers: must be a whole number of count, is 1.5"),
        ("deadline_s = nan", "deadline_s: must be 10 ms to 1 min, is nan"),
        ('protection = "disc"', "protection: must be one of 'disk', 'replica', 'none', is 'disc'"),
        ('disk_path = "swap.img"', "disk_path: must be a path from the root, is 'swap.img'"),
        ('listen = ["udp:1"]', "listen: 'udp:1' is no endpoint; write tcp:HOST:PORT or unix:PATH"),
        ('listen = "tcp:host:99999"', "listen: 'host:99999' is not HOST:PORT"),
        ('listen = "unix:nbd.sock"', "listen: 'unix:nbd.sock' must be a path from the root"),
        (
            f'listen = "unix:/{"s" * 107}"',
            f"listen: '/{'s' * 107}' is longer than the 107 bytes of a unix socket's path; name a shorter one",
        ),
        ('[[fault]]\nkind = "delay"', "fault: table 1: needs 'donor'"),
        ('[[fault]]\ndonor = "d1"\nkin = "delay"', "fault: table 1: 'kin': no such setting; did you mean 'kind'?"),
        ('fault = "all"', "fault: must be [[fault]] tables, is 'all'"),
    ],
)
def test_a_wrong_value_is_told_what_is_allowed(tmp_path: Path, text: str, problem: str) -> None:
    first, *others = blockdev_problems(tmp_path, text)

    assert first == problem
    assert all(other.startswith("disk_path: is empty") for other in others)  # what these lines leave out


def test_fault_rules_are_tables(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "blockdev.toml",
        'protection = "replica"\n[[fault]]\ndonor = "d1"\nkind = "delay"\nevery = 10\ndelay_s = "20ms"\n',
    )

    assert load_config(BlockdevConfig, [path]).fault == (FaultRule(donor="d1", kind="delay", every=10, delay_s=0.02),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "disk_path: is empty but protection is 'disk'"),
        ('protection = "none"', "i_accept_data_loss: must be true with protection = 'none'"),
        ('protection = "replica"\ndisk_path = "/d"', "disk_path: is set but protection is 'replica'"),
        ('disk_path = "/d"\nsize_bytes = 2097153', "size_bytes: is not a multiple of 2 MiB; 2097152 is the nearest"),
        (
            'disk_path = "/d"\nslab_bytes = "48MiB"',
            "slab_bytes: is not a power of two; the nearest are 32 MiB and 64 MiB",
        ),
        (
            'disk_path = "/d"\nsize_bytes = "8TiB"',
            "slab_bytes: is too small for size_bytes: 3.75 TiB is all that 61440 slabs of 64 MiB hold; make",
        ),
        (
            'protection = "replica"\nsize_bytes = "64GiB"\nslab_bytes = "2MiB"',
            "slab_bytes: is too small for size_bytes: 60 GiB, two copies of each page, is all that 61440",
        ),
        ('disk_path = "/d"\nlisten = []', "listen: is empty"),
        (f'disk_path = "/d"\nname = "{"n" * 234}"', "name: is longer than 233 bytes"),
        ('disk_path = "/d"\nnode = "my host"', "node: 'my host' is no name of a node"),
        (f'disk_path = "/d"\nadmin_socket = "/{"s" * 107}"', "admin_socket: '/sss"),
        ('disk_path = "/d"\nhedge_s = 2', "hedge_s: is longer than deadline_s"),
        ('disk_path = "/d"\n[[fault]]\ndonor = "d"\nkind = "delay"', "fault: table 1: kind 'delay' needs delay_s"),
        ('disk_path = "/d"\n[[fault]]\ndonor = "disk"\nkind = "hang"', "fault: table 1: the disk knows delay"),
        ('disk_path = "/d"\ncold_slab_pages_per_s_per_gib = 30', "cold_slab_pages_per_s_per_gib: is not below hot"),
        ('protection = "replica"\ndonors_hold = "twice"', "donors_hold: is set but protection is 'replica'"),
        (
            'disk_path = "/d"\ndonors_hold = "twice"\nsize_bytes = "64GiB"\nslab_bytes = "2MiB"',
            "slab_bytes: is too small for size_bytes: 60 GiB, two copies of each page, is all that 61440",
        ),
        (
            'disk_path = "/d"\ndonors_hold = "all"\ncold_slab_pages_per_s_per_gib = 1',
            "cold_slab_pages_per_s_per_gib: is set but",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (told,) = blockdev_problems(tmp_path, text)

    assert told.startswith(problem)


def test_a_donors_settings_are_checked_together_too(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "daemon.toml",
        'memory_total_bytes = "1GiB"\nheadroom_bytes = "1GiB"\nevict_deadline_s = 9\nlease_expiry_s = 2\nlisten = []\n',
    )

    with pytest.raises(ConfigProblems) as caught:
        load_config(DaemonConfig, [path])

    assert [problem.split(": ")[1] for problem in caught.value.problems] == [
        "listen",
        "headroom_bytes",
        "evict_deadline_s",
        "migrate_deadline_s",
    ]


@pytest.mark.parametrize("name", ["d1", "a.b_c:d-E", "n" * 64, "n" * 65, "my host", "ü", ""])
def test_a_node_is_called_what_the_control_protocol_allows(name: str) -> None:
    try:
        msgspec.convert(name, messages.Node)
    except msgspec.ValidationError:
        is_allowed = False
    else:
        is_allowed = True

    assert (NODE.fullmatch(name) is not None) == is_allowed


def test_the_longest_name_of_a_device_fits_its_memory_files(tmp_path: Path) -> None:
    for fd in make_memory(BlockdevConfig(name="n" * NAME_BYTES_MAX, disk_path=tmp_path / "disk")).values():
        os.close(fd)


def test_a_problem_with_no_file_at_all_names_the_file_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ETC", tmp_path)

    with pytest.raises(ConfigProblems, match=f"^{tmp_path}/blockdev.toml: disk_path: is empty"):
        load_config(BlockdevConfig)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    broken = written(tmp_path, "broken.toml", "node = \n")
    deep = written(tmp_path, "deep.toml", "node = " + "[" * 100_000)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigProblems, match=r"none.toml: No such file or directory; name a file"):
        load_config(DaemonConfig, [tmp_path / "none.toml"])
    with pytest.raises(ConfigProblems, match=r"broken.toml: Invalid value \(at line 1, column 8\); fix"):
        load_config(DaemonConfig, [broken])
    with pytest.raises(ConfigProblems, match=r"deep.toml: maximum recursion depth exceeded.*; fix the TOML there"):
        load_config(DaemonConfig, [deep])
    with pytest.raises(ConfigProblems, match=r"binary.toml: is not UTF-8"):
        load_config(DaemonConfig, [tmp_path / "binary.toml"])


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers() | st.text())


@given(st.sampled_from([*settings_of(BlockdevConfig).values()]), ANYTHING)
def test_any_value_is_taken_in_its_type_or_refused_with_a_reason(setting: Setting, value: object) -> None:
    try:
        taken = convert(setting, value)
    except ValueError as refused:
        reason = str(refused)
    else:
        reason = "taken" if isinstance(taken, type(setting.default)) else ""

    assert reason


@pytest.mark.parametrize("config", [DaemonConfig, BlockdevConfig])
def test_every_default_is_a_value_that_its_setting_allows(config: type[DaemonConfig] | type[BlockdevConfig]) -> None:
    for setting in settings_of(config).values():
        default = setting.default
        if isinstance(default, tuple):
            default = list(default)
        told = str(default) if setting.kind == "path" and shown(setting, default) else default
        assert setting.doc
        assert setting.kind == "path" or convert(setting, told) == setting.default


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": ["tcp:0.0.0.0:7680"]}, "listen: tcp:0.0.0.0:7680 is reached from other machines"),
        ({"listen": ["tcp:manager.example:7680"]}, "listen: tcp:manager.example:7680 is reached from other machines"),
        ({"tokens_file": ""}, "tokens_file: '.' is no path from the root"),
        ({"tls_cert": "/c.pem"}, "tls_key: is empty, and the other of the two is not"),
        ({"tls_client_ca": "/ca.pem"}, "tls_client_ca: is of use with tls_cert only"),
        ({"tls_client_required": True}, "tls_client_required: is of use with tls_client_ca only"),
    ],
)
def test_a_manager_that_would_send_tokens_in_the_clear_or_half_secured_is_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load_config(ManagerConfig, [Path("/dev/null")], settings)

    assert caught.value.problems[0].partition(": ")[2].startswith(problem)


@pytest.mark.parametrize(
    "settings",
    [
        {"listen": ["tcp:127.0.0.1:7680", "tcp:[::1]:7680", "tcp:localhost:7680", "unix:/m.sock"]},
        {"listen": ["tcp:0.0.0.0:7680"], "plain_http": True},
        {"listen": ["tcp:0.0.0.0:7680"], "tls_cert": "/c.pem", "tls_key": "/c.key"},
    ],
)
def test_a_manager_listens_to_others_with_tls_or_where_plain_http_is_meant(settings: dict[str, object]) -> None:
    assert load_config(ManagerConfig, [Path("/dev/null")], settings).listen


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"token_file": "", "manager": "ws://m:7680"}, "token_file: is empty, and so is tls_cert"),
        ({"tls_cert": "/c.pem", "tls_key": "/c.key"}, "tls_cert: is shown over TLS only; write wss://"),
        ({"tls_key": "/c.key", "manager": "wss://m:7680"}, "tls_cert: is empty, and the other of the two is not"),
        ({"state_dir": f"/{'s' * 94}"}, f"state_dir: '/{'s' * 94}/agent.notify' is longer than the 107 bytes"),
    ],
)
def test_an_agent_that_could_not_start_or_that_nobody_could_know_is_refused(
    settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigProblems) as caught:
        load_config(AgentConfig, [Path("/dev/null")], settings)

    assert caught.value.problems[0].partition(": ")[2].startswith(problem)


def test_a_setting_that_two_programs_declare_alike_is_a_shared_one() -> None:
    own: dict[Setting, str] = {}
    for program, config in load.kinds().items():
        for name in get_annotations(config):
            setting = settings_of(config)[name]
            assert own.setdefault(setting, program) == program, f"move {name} to src/farside/config/shared.py"
