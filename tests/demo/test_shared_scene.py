"""The demo's aggregation scene: its verdict, what it lacks, and the whole of it played for real."""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from farside.cli.demo import shared
from farside.cli.demo.main import run
from farside.cli.demo.shared import SharedScene, Trained, play
from farside.cli.demo.shared_report import print_peers, print_scene, scene_faults
from farside.cli.demo.show import Show
from farside.errors import Unavailable
from tests.training.models import needs_torch

GOOD = SharedScene(
    jobs=tuple(Trained(model=model, state="done", is_equal=True) for model in ("images", "sentences")),
    moved_from="n1",
    moved_to="n2",
    violations=(),
    page=("1", "2", "n1", "n2", "n3"),
)


def test_a_scene_whose_jobs_ended_equal_is_good() -> None:
    assert scene_faults(GOOD) == ()


def test_what_went_wrong_is_named_and_shown() -> None:
    images, sentences = GOOD.jobs
    bad = replace(
        GOOD,
        jobs=(replace(images, is_equal=False), replace(sentences, state="failed")),
        violations=("entry 9: a chunk has two owners",),
        page=("n1",),
    )
    console = Console(file=io.StringIO(), width=120)

    print_scene(console, bad)

    assert scene_faults(bad) == (
        "the log: entry 9: a chunk has two owners",
        "job sentences is failed, not done",
        "the parameters of job images differ from those of one process",
        "the page shows of aggregation only: n1",
    )
    assert console.file.getvalue().count("FAIL") == 4  # type: ignore[attr-defined]


def test_without_pytorch_it_says_in_one_line_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "find_spec", lambda name: None)

    with pytest.raises(Unavailable, match="trains with PyTorch, which is not installed") as refused:
        run(part="aggregation")

    assert refused.value.hint == "make demo SCENE=aggregation"


def test_outside_of_a_checkout_the_table_is_said_to_need_one(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)

    assert print_peers(console, tmp_path) == 0

    assert "needs a checkout" in console.file.getvalue()  # type: ignore[attr-defined]


@needs_torch
def test_two_jobs_are_moved_and_lose_their_aggregator_and_end_equal() -> None:
    console = Console(file=io.StringIO(), width=120)

    with tempfile.TemporaryDirectory(prefix="farside-") as folder, Show(console, lambda: "") as show:
        scene = play(show, Path(folder))

    assert scene_faults(scene) == ()
