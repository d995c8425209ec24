"""Tensors become chunks, the same on every member; plans give each chunk one owner."""

import csv
import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.aggregator import layout as module
from farside.agent.aggregator.layout import (
    CHUNK_BYTES,
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    ITEM_BYTES,
    JOIN_BYTES,
    Layout,
    Tensor,
    first_difference,
    make_layout,
    rule_problem,
)
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, Run, epoch_of, plan_problem, runs_problem, spread
from farside.agent.aggregator.plan import given as given_owners
from farside.errors import ConfigError

AUTOPS = Path(__file__).parents[2].parent / "shared" / "data" / "autops"
COUNTS = st.one_of(st.integers(1, 3000), st.integers(16_000, 17_000), st.integers(60_000, 600_000))
MODELS = st.lists(st.tuples(COUNTS, st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 2)), min_size=1, max_size=30)


def tensors_of(model: list[tuple[int, str, int]]) -> list[Tensor]:
    return [Tensor(f"t{at}", count, dtype, group) for at, (count, dtype, group) in enumerate(model)]


@given(MODELS)
def test_every_element_is_in_one_chunk(model: list[tuple[int, str, int]]) -> None:
    tensors = tensors_of(model)

    made = make_layout(tensors)

    found: dict[int, list[tuple[int, int]]] = {}
    for pieces in made.chunks:
        for piece in pieces:
            found.setdefault(piece.tensor, []).append((piece.offset, piece.count))
    for number, one in enumerate(tensors):
        ends = [0, *(offset + count for offset, count in found[number])]
        assert [offset for offset, _count in found[number]] == ends[:-1]
        assert ends[-1] == one.count


@given(MODELS)
def test_chunks_have_one_format_and_group_and_keep_their_limits(model: list[tuple[int, str, int]]) -> None:
    tensors = tensors_of(model)

    made = make_layout(tensors)

    for chunk, pieces in enumerate(made.chunks):
        assert {tensors[piece.tensor].dtype for piece in pieces} == {made.dtypes[chunk]}
        assert {tensors[piece.tensor].group for piece in pieces} == {made.groups[chunk]}
        assert made.sizes_bytes[chunk] <= CHUNK_BYTES
        assert len(pieces) == 1 or made.sizes_bytes[chunk] < 2 * JOIN_BYTES
    firsts = [(pieces[0].tensor, pieces[0].offset) for pieces in made.chunks]
    assert firsts == sorted(firsts)


@given(MODELS)
def test_tasks_are_runs_of_equal_chunks(model: list[tuple[int, str, int]]) -> None:
    made = make_layout(tensors_of(model))

    assert [chunk for task in made.tasks for chunk in range(task.first, task.first + task.count)] == [
        *range(len(made.chunks))
    ]
    for task in made.tasks:
        assert set(made.sizes_bytes[task.first : task.first + task.count]) == {task.chunk_bytes}
        assert len({made.chunks[task.first + at][0].tensor for at in range(task.count)}) == 1


@given(MODELS, st.data())
def test_layouts_have_one_digest_only_where_they_are_the_same(
    model: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    tensors = tensors_of(model)
    at = data.draw(st.integers(0, len(tensors) - 1))
    one = tensors[at]
    changed = data.draw(
        st.sampled_from(
            [
                Tensor(one.name, one.count + 1, one.dtype, one.group),
                Tensor(one.name, one.count, one.dtype, one.group + 1),
                Tensor("other", one.count, one.dtype, one.group),
            ]
        )
    )
    others = [*tensors[:at], changed, *tensors[at + 1 :]]

    assert make_layout(tensors).digest == make_layout(tensors).digest
    assert make_layout(others).digest != make_layout(tensors).digest
    assert first_difference(tensors, tensors) == ""
    assert one.name in first_difference(tensors, others)


def test_a_difference_names_the_tensor_that_only_one_has() -> None:
    one, two = Tensor("fc.weight", 10, "f32"), Tensor("fc.bias", 1, "f32")

    assert first_difference([one, two], [one]) == "tensor 'fc.bias' is here and not at rank 0"
    assert first_difference([one], [one, two], them="rank 3") == "tensor 'fc.bias' is at rank 3 and not here"
    assert first_difference([one], [Tensor("fc.weight", 12, "f32")]) == (
        "tensor 'fc.weight': elements 10 here and 12 at rank 0"
    )


def test_shapes_differ_where_both_say_them() -> None:
    mine, theirs = Tensor("w", 128, "f32", shape=(8, 16)), Tensor("w", 128, "f32", shape=(16, 8))

    assert first_difference([mine], [theirs]) == "tensor 'w': shape 8x16 here and 16x8 at rank 0"
    assert first_difference([mine], [mine]) == ""
    assert first_difference([mine], [Tensor("w", 128, "f32")]) == ""
    assert first_difference([Tensor("w", 128, "f32")], [theirs]) == ""


class _TensorBefore(msgspec.Struct, frozen=True, array_like=True):
    """As the Farside before has it, which knows of no shapes."""

    name: str
    count: int
    dtype: str
    group: int = 0
    is_apart: bool = False


def test_the_version_before_reads_tensors_with_shapes_and_is_read() -> None:
    one = Tensor("w", 128, "f32", 3, True, (8, 16))
    before = msgspec.msgpack.decode(msgspec.msgpack.encode([one]), type=list[_TensorBefore])

    assert before == [_TensorBefore("w", 128, "f32", 3, True)]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=list[Tensor]) == [
        Tensor("w", 128, "f32", 3, True)
    ]


@pytest.mark.parametrize("is_apart", [False, True])
def test_shapes_leave_the_digest_as_it_was(is_apart: bool) -> None:
    said = [Tensor("w", 128, "f32", is_apart=is_apart, shape=(8, 16)), Tensor("b", 16, "f32", shape=(16,))]
    unsaid = [msgspec.structs.replace(one, shape=()) for one in said]

    assert make_layout(said).digest == make_layout(unsaid).digest
    assert make_layout(said).tensors == tuple(said)


def test_shapes_that_make_a_declaration_too_long_are_left_out() -> None:
    many = [Tensor(f"{'a' * 140}{at:06}", 8, "f32", shape=(1, 1, 1, 1, 2, 2, 2, 1)) for at in range(6_500)]

    assert make_layout(many[:3]).tensors == tuple(many[:3])
    assert {one.shape for one in make_layout(many).tensors} == {()}


@pytest.mark.parametrize(
    ("model", "chunks", "joined"),
    [("bert-base", 1677, 8), ("alexnet", 936, 1), ("vgg19", 2196, 1), ("bert-large", 5129, 20)],
)
def test_published_models_have_so_many_chunks(model: str, chunks: int, joined: int) -> None:
    path = AUTOPS / f"{model}.csv"
    if not path.exists():
        pytest.skip("no tensor lists on this machine")
    with path.open() as file:
        rows = [(row["tensor"], int(row["bytes"])) for row in csv.DictReader(file)]

    made = make_layout([Tensor(name, size // 4, "f32") for name, size in rows])

    assert len(made.chunks) == chunks
    assert sum(1 for pieces in made.chunks if len(pieces) > 1) == joined


def test_a_large_model_has_larger_chunks_and_one_that_is_too_large_is_refused() -> None:
    large = [Tensor(f"t{at}", 1 << 30, "f32") for at in range(5)]  # 20 GiB

    made = make_layout(large)

    assert len(made.chunks) <= CHUNKS_MAX
    assert CHUNK_BYTES < max(made.sizes_bytes) <= CHUNK_BYTES_MAX
    with pytest.raises(ConfigError, match="aggregate it in parts"):
        make_layout([Tensor("t", 1 << 35, "f32")])


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([], "no trainable tensor"),
        ([Tensor("a", 1, "f32"), Tensor("a", 1, "f32")], "'a' is declared twice"),
        ([Tensor("a", 1, "c64")], "'a' is of c64"),
        ([Tensor("a", 0, "f32")], "'a' has 0 elements"),
        ([Tensor("a", 1, "f32", 64)], "'a' is in parameter group 64.*update=.worker."),
        ([Tensor("a", 7, "f32", shape=(2, 4))], "'a' of shape 2x4 does not have 7 elements"),
        ([Tensor("a" * 257, 1, "f32")], "a name has 1 to 256 bytes"),
        ([Tensor(f"{'a' * 200}{at}", 1, "f32") for at in range(6000)], "1 MiB can be had"),
        ([Tensor(f"{at}", 1, "f32") for at in range(module.TENSORS_MAX + 1)], "65537 trainable tensors"),
    ],
)
def test_what_cant_be_aggregated_is_refused_in_one_line(tensors: list[Tensor], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        make_layout(tensors)

    assert "\n" not in str(refused.value)


def test_formats_that_are_only_summed_have_no_optimizer() -> None:
    tensors = [Tensor("a", 1, "f32"), Tensor("b", 1, "i64")]

    assert rule_problem(tensors, "sum") == ""
    assert rule_problem(tensors[:1], "adam") == ""
    assert rule_problem(tensors, "mean") == "tensor 'b' is of i64, which can only be summed, not 'mean'"
    assert "there are sum, mean, sgd, adam, adamw" in rule_problem(tensors, "lamb")


@given(MODELS, st.integers(1, 5))
def test_a_static_plan_gives_each_chunk_one_owner_and_each_owner_its_share(
    model: list[tuple[int, str, int]], owners: int
) -> None:
    made = make_layout(tensors_of(model))

    runs = spread(made, range(owners))

    assert runs_problem(runs, len(made.chunks), range(owners)) == ""
    loads = [0] * owners
    for run in runs:
        loads[run.owner] += sum(made.sizes_bytes[run.first : run.first + run.count])
    assert max(loads) <= sum(loads) / owners + CHUNK_BYTES


def plan_of(layout: Layout, runs: tuple[Run, ...]) -> JobPlan:
    addresses = (AggregatorAddress(number=0, unix="/run/a"), AggregatorAddress(number=1, tcp="h:1"))
    return JobPlan(
        job="j", start=1, key=bytes(32), members=2, digest=layout.digest, aggregators=addresses, runs=runs
    )  # fmt: skip


def test_a_plan_crosses_json_whole() -> None:
    layout = make_layout([Tensor("a", 200_000, "f32")])
    plan = plan_of(
        layout, (Run(first=0, count=4, owner=0, epoch=epoch_of(3, 7), next_owner=1, next_epoch=epoch_of(3, 9)),)
    )

    assert msgspec.json.decode(msgspec.json.encode(plan), type=JobPlan) == plan
    assert plan.epoch == epoch_of(3, 9) > epoch_of(2, 1 << 39)
    assert plan_problem(plan, len(layout.chunks)) == ""


@pytest.mark.parametrize(
    ("runs", "problem"),
    [
        ((Run(first=0, count=3, owner=0, epoch=1),), "3 chunks, the layout 4"),
        ((Run(first=1, count=3, owner=0, epoch=1),), "chunk 0 is owned by nobody"),
        ((Run(first=0, count=3, owner=0, epoch=1), Run(first=2, count=2, owner=1, epoch=1)), "chunk 2 is owned twice"),
        ((Run(first=0, count=4, owner=5, epoch=1),), "chunk 0 is owned by an Aggregator that the plan has no"),
        ((Run(first=0, count=4, owner=0, epoch=1, next_owner=0, next_epoch=2),), "to the Aggregator that owns it"),
        ((Run(first=0, count=4, owner=0, epoch=2, next_owner=1, next_epoch=2),), "no newer one than 2"),
        ((Run(first=0, count=4, owner=0, epoch=2, next_owner=1),), "moves under epoch 0"),
    ],
)  # fmt: skip
def test_a_plan_that_cant_be_carried_out_says_why(runs: tuple[Run, ...], problem: str) -> None:
    layout = make_layout([Tensor("a", 200_000, "f32")])

    assert problem in plan_problem(plan_of(layout, runs), len(layout.chunks))


def test_owners_that_are_given_become_runs() -> None:
    assert given_owners([0, 0, 1, 0]) == (
        Run(first=0, count=2, owner=0, epoch=1),
        Run(first=2, count=1, owner=1, epoch=1),
        Run(first=3, count=1, owner=0, epoch=1),
    )


def test_a_tensor_that_is_apart_is_joined_with_no_other_and_the_digest_says_so() -> None:
    tensors = [Tensor("weight", 40_000, "f32"), *(Tensor(f"bias{number}", 10, "f32") for number in range(3))]
    apart = [msgspec.structs.replace(one, is_apart=True) for one in tensors]

    joined, own = make_layout(tensors), make_layout(apart)

    assert [len(pieces) for pieces in joined.chunks] == [1, 3]
    assert [len(pieces) for pieces in own.chunks] == [1, 1, 1, 1]
    assert joined.digest != own.digest
    # As the Farside before has it, which knows of none that is apart.
    before = [(one.name, one.count, one.dtype, one.group) for one in tensors]
    assert joined.digest == hashlib.sha256(msgspec.msgpack.encode((1, before))).hexdigest()
    assert first_difference(apart, tensors) == ("tensor 'weight': find_unused_parameters True here and False at rank 0")
