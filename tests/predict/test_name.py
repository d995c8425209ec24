"""Names that are the same but for a date, and names that are alike."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.predict.job_names import LISTED, PIECES, UNKNOWN, NameBuckets, form_of
from farside.scheduler.sim.workload.naming import with_slip

NAMES = ["train_resnet50_imagenet_x8", "finetune_bert_squad_x4", "search_yolo_coco_x1", "eval_unet_kitti_v3"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("train-2020-09-01", "train-2021-12-31"),
        ("train_20200914", "Train_20201001"),
        ("run-20200914-1322", "run-20200915-0907"),
        ("run 2020.9.14 13:22:05", "run 2020.10.1 00:00:01"),
        ("exp-0412", "exp-1231"),
        ("job-3f2a9c81d", "job-9b04e77ac"),
        ("sweep-550e8400-e29b-41d4", "sweep-6ba7b810-9dad-11d1"),
        ("  padded ", "padded"),
    ],
)
def test_what_changes_from_run_to_run_is_masked(first: str, second: str) -> None:
    assert form_of(first) == form_of(second)


@pytest.mark.parametrize(
    ("first", "second"), [("lr0.1", "lr0.2"), ("x4", "x8"), ("resnet50", "resnet18"), ("decade", "facade")]
)
def test_short_numbers_and_words_tell_names_apart(first: str, second: str) -> None:
    assert form_of(first) != form_of(second)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_one_slip_is_found(name: str) -> None:
    buckets = NameBuckets(0.9)
    for other in NAMES:
        buckets.add(form_of(other))

    found = [buckets.find(form_of(with_slip(name, number))) for number in range(300)]

    assert sum(one == buckets.find(name) for one in found) >= 0.95 * len(found)


def test_names_that_differ_stay_apart() -> None:
    buckets = NameBuckets(0.8)

    assert [buckets.add(name) for name in NAMES] == [0, 1, 2, 3]


def test_with_similarity_1_only_equal_forms_share_a_bucket() -> None:
    buckets = NameBuckets(1.0)

    assert buckets.add("abcdefghij") != buckets.add("abcdefghik")
    assert buckets.find("abcdefghix") == UNKNOWN


def test_no_name_has_no_bucket() -> None:
    assert NameBuckets(0.9).add("") == NameBuckets(0.9).find("") == UNKNOWN


@given(st.lists(st.text(max_size=30), max_size=40), st.sampled_from([0.5, 0.8, 1.0]))
def test_what_was_added_is_found_in_its_bucket(names: list[str], similarity: float) -> None:
    buckets = NameBuckets(similarity)

    added = {form_of(name): buckets.add(form_of(name)) for name in names}

    assert {form: buckets.find(form) for form in added} == added
    assert set(added.values()) - {UNKNOWN} == set(range(len(buckets)))


def test_a_form_is_compared_with_a_bounded_number_of_others() -> None:
    buckets, rng = NameBuckets(0.99), random.Random(1)
    for _ in range(3000):
        buckets.add("train_" + "".join(rng.choice("abc") for _ in range(12)))

    assert max(len(listed) for listed in buckets._listed.values()) <= LISTED
    assert PIECES * LISTED < 3000


@pytest.mark.parametrize("similarity", [0.0, 1.1])
def test_a_similarity_that_is_none_is_refused(similarity: float) -> None:
    with pytest.raises(ValueError, match="similarity: must be above 0 and at most 1"):
        NameBuckets(similarity)
