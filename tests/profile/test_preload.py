"""The library in real processes: what it sees of them, and that it never shows."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.agent.profile import ring
from farside.agent.profile.ring_file import LIBRARY, RingFile
from farside.errors import Unavailable
from tests.profile.preloaded import PAIR, ring_file, run, sizes, variables


@pytest.fixture
def file() -> Iterator[RingFile]:
    with ring_file() as made:
        yield made


def test_messages_of_a_socket_are_seen_with_their_sizes(file: RingFile) -> None:
    run("ours.send(b'x' * 3000); ours.sendall(b'x' * 2000); ours.sendmsg([b'x' * 10, b'x' * 5])", file.path)

    recorded = file.read()

    assert (recorded.attached, recorded.problems) == (1, ())
    assert sizes(recorded) == [[3000, 2000, 15]]


def test_write_and_writev_and_sendfile_to_a_socket_are_seen(file: RingFile, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 7000)
    run(
        """
        os.write(ours.fileno(), b"x" * 4000)
        os.writev(ours.fileno(), [b"x" * 4000, b"x" * 1000])
        with open(sys.argv[1], "rb") as source:
            os.sendfile(ours.fileno(), source.fileno(), 0, 7000)
        """,
        file.path,
        str(tmp_path / "data"),
    )

    assert sizes(file.read()) == [[4000, 5000, 7000]]


def test_files_pipes_and_unix_sockets_are_not(file: RingFile, tmp_path: Path) -> None:
    run(
        """
        a, b = socket.socketpair()
        a.send(b"x" * 5000)
        with open(sys.argv[1], "wb", buffering=0) as out:
            out.write(b"x" * 100_000)
        reader, writer = os.pipe()
        os.write(writer, b"x" * 5000)
        ours.send(b"x" * 1500)
        """,
        file.path,
        str(tmp_path / "out"),
    )

    assert sizes(file.read()) == [[1500]]


def test_a_file_that_gets_the_number_of_a_closed_socket_is_not_taken_for_one(file: RingFile, tmp_path: Path) -> None:
    run(
        """
        ours.send(b"x" * 1500)
        number = ours.fileno()
        ours.close()
        fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
        assert fd == number
        os.write(fd, b"x" * 100_000)
        """,
        file.path,
        str(tmp_path / "out"),
    )

    assert sizes(file.read()) == [[1500]]


def test_what_a_socket_takes_in_parts_is_marked_as_one_message(file: RingFile) -> None:
    run(
        """
        import select, struct
        ours.setblocking(False)
        left = b"x" * (32 << 20)
        while left:
            select.select([], [ours], [])
            left = left[ours.send(left):]
        """,
        file.path,
    )

    events = file.read().processes[0].events

    assert len(events) > 1
    assert [event.is_incomplete for event in events] == [True] * (len(events) - 1) + [False]
    assert sum(event.bytes for event in events) == 32 << 20


def test_each_thread_is_seen_and_the_lane_of_one_that_has_ended_is_used_again(file: RingFile) -> None:
    run(
        """
        for _ in range(100):
            thread = threading.Thread(target=ours.send, args=(b"x" * 2000,))
            thread.start()
            thread.join()
        """,
        file.path,
    )

    recorded = file.read()

    assert (sizes(recorded), recorded.refused) == ([[2000] * 100], 0)


def test_more_threads_than_lanes_are_counted_and_work(file: RingFile) -> None:
    run(
        """
        wait = threading.Barrier(41)
        def send():
            ours.send(b"x" * 2000)
            wait.wait()
            wait.wait()
        threads = [threading.Thread(target=send) for _ in range(40)]
        for thread in threads: thread.start()
        wait.wait()
        wait.wait()
        for thread in threads: thread.join()
        """,
        file.path,
    )

    recorded = file.read()

    assert (len(sizes(recorded)[0]), recorded.refused) == (ring.LANES, 8)


def test_a_child_of_fork_is_a_process_of_its_own_and_its_parent_is_not_disturbed(file: RingFile) -> None:
    run(
        """
        import warnings
        warnings.simplefilter("ignore")
        ours.send(b"x" * 1111)
        pid = os.fork()
        if pid == 0:
            for _ in range(50): ours.send(b"x" * 3333)
            os._exit(0)
        for _ in range(50): ours.send(b"x" * 2222)
        os.waitpid(pid, 0)
        """,
        file.path,
    )

    assert sorted(sizes(file.read())) == [[1111] + [2222] * 50, [3333] * 50]


def test_programs_that_a_program_starts_are_seen_though_descriptors_are_closed(file: RingFile) -> None:
    run(
        """
        import subprocess
        program = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).send(b'x' * 4444)"
        threading.Thread(target=lambda: listener.accept()[0].recv(9999), daemon=True).start()
        port = str(listener.getsockname()[1])
        subprocess.run([sys.executable, "-c", program, port], close_fds=True, check=True)
        """,
        file.path,
    )

    recorded = file.read()

    assert (sizes(recorded), recorded.attached) == ([[4444]], 2)


def test_what_was_sent_is_there_after_kill_9(file: RingFile) -> None:
    run("ours.send(b'x' * 2000)\nos.kill(os.getpid(), signal.SIGKILL)", file.path, status=-signal.SIGKILL)

    assert sizes(file.read()) == [[2000]]


def test_of_many_messages_the_newest_are_there_and_all_are_counted(file: RingFile) -> None:
    run("for _ in range(20_000): ours.send(b'x' * 1500)", file.path)

    process = file.read().processes[0]

    assert (len(process.events), process.sent_bytes) == (ring.EVENTS - 1, 20_000 * 1500)


def test_small_talk_takes_no_lane(file: RingFile) -> None:
    run("for _ in range(100): ours.send(b'x' * 100)", file.path)

    assert sizes(file.read()) == []


def test_errors_of_the_real_functions_come_through(file: RingFile) -> None:
    said = run(
        """
        import errno
        for attempt in (lambda: os.write(99, b"x"), lambda: os.close(98), lambda: os.dup2(97, 96)):
            try:
                attempt()
            except OSError as error:
                print(errno.errorcode[error.errno])
        ours.setblocking(False)
        try:
            while ours.send(b"x" * 2000): pass
        except BlockingIOError as error:
            print(errno.errorcode[error.errno])
        """,
        file.path,
        before=PAIR.replace("threading.Thread(target=swallow, daemon=True).start()", ""),
    )

    assert said.split() == ["EBADF", "EBADF", "EBADF", "EAGAIN"]


@pytest.mark.parametrize("kind", ["missing", "short", "foreign", "folder", "unwritable"])
def test_without_a_file_that_it_knows_a_program_runs_as_ever(kind: str, file: RingFile, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "short":
        path.write_bytes(ring.blank_head())
    elif kind == "foreign":
        path.write_bytes(bytes(ring.FILE_BYTES))
    elif kind == "folder":
        path.mkdir()
    elif kind == "unwritable":
        path.symlink_to("/proc/version")

    run("ours.send(b'x' * 3000)", path)


def test_a_file_that_was_cut_off_is_refused_by_its_reader(file: RingFile) -> None:
    run("ours.send(b'x' * 3000)", file.path)
    os.truncate(file.path, 5000)

    with pytest.raises(Unavailable, match="it was cut"):
        file.read()


@pytest.mark.parametrize("program", [["/bin/bash", "-c", "echo hello"], ["/usr/bin/env"], ["/bin/ls", "/"]])
def test_ordinary_programs_say_what_they_say_without_it(file: RingFile, program: list[str]) -> None:
    told = variables(file.path)

    with_it = subprocess.run(program, env=told, capture_output=True, check=True)
    without = subprocess.run(program, env={**told, "FARSIDE_PROFILE": ""}, capture_output=True, check=True)

    assert (with_it.stderr, len(with_it.stdout) > 0) == (b"", True)
    if program[0] != "/usr/bin/env":
        assert with_it.stdout == without.stdout


def test_the_library_needs_nothing_but_libc() -> None:
    told = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in told.splitlines() if "(NEEDED)" in line]

    assert needed == ["libc.so.6"]
    assert "BIND_NOW" in told
