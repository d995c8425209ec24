"""Aggregation's arithmetic against NumPy, bit for bit, in both variants of the engine."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import EngineError
from farside.kmod_shim.engine import aggregation
from farside.kmod_shim.engine.aggregation import DType, Hyper, Rule

Array = npt.NDArray[Any]

# Around a vector's 8 elements, and around a block's 1,024.
LENGTHS = (1, 7, 8, 9, 1023, 1024, 1025, 5000)
STEPS = 4
FLOATS = (DType.F32, DType.F16, DType.BF16)
STORED = {
    DType.F32: np.float32, DType.F16: np.float16, DType.BF16: np.uint16,
    DType.F64: np.float64, DType.I32: np.int32, DType.I64: np.int64,
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["vector", "portable"])
def variant(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Runs the test once with what the CPU has, and once without its vector instructions."""
    yield aggregation.use_portable(request.param)
    aggregation.use_portable(False)


# ---- the oracle: one IEEE 754 operation at a time


def widen(array: Array, dtype: DType) -> Array:
    if dtype is DType.BF16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32)


def narrow(array: Array, dtype: DType) -> Array:
    if dtype is not DType.BF16:
        return array.astype(STORED[dtype])
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def fma(a: Any, b: Any, c: Any) -> Array:
    """a * b + c of float32, rounded once."""
    # The product is exact in float64. The sum is rounded to odd there: its last bit then says that something was cut
    # off, and the rounding to float32 is the only one that counts.
    product, addend = np.float64(a) * np.float64(b), np.float64(c)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    is_even = total.view(np.uint64) & np.uint64(1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(np.isfinite(total) & (error != 0) & is_even, odd, total).astype(np.float32)


def summed(gradients: list[Array], dtype: DType) -> Array:
    if dtype not in FLOATS:
        return sum(gradients[1:], gradients[0].copy())
    total = widen(gradients[0], dtype)
    for gradient in gradients[1:]:
        total = total + widen(gradient, dtype)
    return total


def sgd(masters: list[Array], g: Array, step: int, hyper: Hyper) -> list[Array]:
    p = masters[0]
    if hyper.weight_decay:
        g = fma(np.float32(hyper.weight_decay), p, g)
    if not hyper.momentum:
        return [fma(-np.float32(hyper.lr), g, p)]
    momentum = np.float32(hyper.momentum)
    b = g if step == 1 else momentum * masters[1] + g
    return [fma(-np.float32(hyper.lr), fma(momentum, b, g) if hyper.nesterov else b, p), b]


def adam(masters: list[Array], g: Array, step: int, hyper: Hyper, *, decoupled: bool) -> list[Array]:
    p, m, v = masters
    if hyper.weight_decay and decoupled:
        p = p * np.float32(1 - hyper.lr * hyper.weight_decay)
    elif hyper.weight_decay:
        g = fma(np.float32(hyper.weight_decay), p, g)
    weight = np.float32(1 - hyper.beta1)
    m = fma(weight, g - m, m) if weight < 0.5 else fma(weight - np.float32(1), g - m, g)
    v = fma(np.float32(1 - hyper.beta2) * g, g, v * np.float32(hyper.beta2))
    step_size = np.float32(-(hyper.lr / (1 - hyper.beta1**step)))
    correction = np.float32((1 - hyper.beta2**step) ** 0.5)
    return [p + step_size * m / (np.sqrt(v) / correction + np.float32(hyper.eps)), m, v]


def step_of(rule: Rule, masters: list[Array], g: Array, step: int, hyper: Hyper) -> list[Array]:
    if rule is Rule.SGD:
        return sgd(masters, g, step, hyper)
    return adam(masters, g, step, hyper, decoupled=rule is Rule.ADAMW)


# ---- arrays


def any_bits(rng: np.random.Generator, dtype: DType, length: int) -> Array:
    """Every bit pattern may come: subnormals, infinities, NaN."""
    return np.frombuffer(rng.bytes(length * dtype.item_bytes), STORED[dtype]).copy()


def ordinary(rng: np.random.Generator, dtype: DType, length: int) -> Array:
    return narrow(rng.normal(0, 1, length).astype(np.float32), dtype)


def assert_same_bits(ours: Array, wanted: Array, dtype: DType) -> None:
    """Equal bits; where two NaN have met, either may have stayed."""
    assert ours.dtype == wanted.dtype
    if dtype in (DType.I32, DType.I64):
        assert np.array_equal(ours, wanted)
        return
    as_floats = (widen(ours, dtype), widen(wanted, dtype)) if dtype in FLOATS else (ours, wanted)
    both_nan = np.isnan(as_floats[0]) & np.isnan(as_floats[1])
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[ours.dtype.itemsize]
    differ = np.flatnonzero((ours.view(unsigned) != wanted.view(unsigned)) & ~both_nan)
    assert not len(differ), f"{len(differ)} differ, first at {differ[0]}: {ours[differ[0]]} for {wanted[differ[0]]}"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


# ---- sums


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("draw", [any_bits, ordinary], ids=["any_bits", "ordinary"])
def test_a_sum_is_taken_in_rank_order_and_rounded_as_numpy_rounds(
    dtype: DType, draw: Callable[..., Array], variant: bool
) -> None:
    if draw is ordinary and dtype in (DType.I32, DType.I64):
        draw = any_bits
    rng = np.random.default_rng(dtype)
    for length in LENGTHS:
        for members in (2, 3, 7):
            gradients = [draw(rng, dtype, length) for _ in range(members)]
            outputs = [np.zeros(length, STORED[dtype]) for _ in range(members)]

            aggregation.reduce(Rule.SUM, dtype, gradients, outputs)

            wanted = summed(gradients, dtype)
            for output in outputs:
                assert_same_bits(output, narrow(wanted, dtype) if dtype in FLOATS else wanted, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mean_is_the_sum_divided_by_the_members(dtype: DType, variant: bool) -> None:
    rng = np.random.default_rng(dtype)
    for members in (2, 3, 5, 8):
        gradients = [any_bits(rng, dtype, 2000) for _ in range(members)]
        output = np.zeros(2000, STORED[dtype])

        aggregation.reduce(Rule.MEAN, dtype, gradients, [output])

        assert_same_bits(output, narrow(summed(gradients, dtype) / np.float32(members), dtype), dtype)


def beside_a_boundary(length: int, shift: int) -> Array:
    """Zeros that begin ``shift`` elements after a boundary of 32 bytes."""
    array = np.zeros(length + shift + 8, np.float32)
    first = -array.ctypes.data % 32 // 4 + shift
    return array[first : first + length]


@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("rule", [Rule.SUM, Rule.MEAN], ids=lambda rule: rule.name)
def test_results_that_go_past_the_caches_have_the_same_bits(rule: Rule, shift: int, variant: bool) -> None:
    rng = np.random.default_rng(5)
    for length in LENGTHS:
        gradients = [any_bits(rng, DType.F32, length) for _ in range(3)]
        near = np.zeros(length, np.float32)
        far = [beside_a_boundary(length, at) for at in (0, shift)]

        aggregation.reduce(rule, DType.F32, gradients, [near])
        aggregation.reduce(rule, DType.F32, gradients, far, past_caches=True)

        assert near.any()
        assert all(result.tobytes() == near.tobytes() for result in far)


@pytest.mark.parametrize("dtype", list(DType))
def test_the_sum_of_one_is_its_copy_even_of_a_signalling_nan(dtype: DType, variant: bool) -> None:
    gradient = any_bits(np.random.default_rng(1), dtype, 3000)
    output = np.zeros(3000, STORED[dtype])

    aggregation.reduce(Rule.SUM, dtype, [gradient], [output])

    assert output.tobytes() == gradient.tobytes()


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_every_half_is_widened_and_rounded_alike_in_both_variants(dtype: DType) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    found = []
    for portable in (False, True):
        aggregation.use_portable(portable)
        output = np.zeros_like(halves)
        # With -0 nothing changes, and no two NaN meet. A mean of two halves each, so that all bits are needed.
        aggregation.reduce(Rule.SUM, dtype, [halves, np.full(65536, 0x8000, np.uint16)], [output])
        found.append(output)
        mean = np.zeros_like(halves)
        aggregation.reduce(Rule.MEAN, dtype, [halves, np.roll(halves, 1)], [mean])
        found.append(mean)
    aggregation.use_portable(False)

    number = widen(halves.view(STORED[dtype]), dtype)
    unchanged = ~np.isnan(number)
    assert np.array_equal(found[0][unchanged], halves[unchanged])
    assert np.array_equal(found[0], found[2])
    single = ~(np.isnan(number) & np.isnan(np.roll(number, 1)))
    assert np.array_equal(found[1][single], found[3][single])


@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), dtype=st.sampled_from([DType.F16, DType.BF16])
)
def test_a_float_is_rounded_to_a_half_once(bits: list[int], dtype: DType) -> None:
    # SGD with a rate of 1 and a gradient of -0 hands the float32 master through, and rounds it for the members.
    master = np.array(bits, np.uint32).view(np.float32)
    gradient = np.full(len(bits), 0x8000, np.uint16)
    outputs = []
    for portable in (False, True):
        aggregation.use_portable(portable)
        output = np.zeros(len(bits), STORED[dtype])
        after = [np.zeros_like(master)]
        aggregation.reduce(
            Rule.SGD, dtype, [gradient], [output], step=1, hyper=Hyper(lr=1), masters=[master], next_masters=after
        )
        outputs.append(output)
    aggregation.use_portable(False)

    assert outputs[0].tobytes() == outputs[1].tobytes()
    with np.errstate(all="ignore"):
        assert_same_bits(outputs[0], narrow(master, dtype), dtype)


# ---- optimizers

HYPERS = {
    "sgd": (Rule.SGD, Hyper(lr=0.1)),
    "sgd_decay": (Rule.SGD, Hyper(lr=0.1, weight_decay=1e-2)),
    "momentum": (Rule.SGD, Hyper(lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "nesterov": (Rule.SGD, Hyper(lr=0.05, momentum=0.9, nesterov=True)),
    "adam": (Rule.ADAM, Hyper()),
    "adam_decay": (Rule.ADAM, Hyper(lr=3e-3, weight_decay=0.1, beta1=0.8, beta2=0.99, eps=1e-6)),
    "adam_short_memory": (Rule.ADAM, Hyper(beta1=0.25)),
    "adam_half": (Rule.ADAM, Hyper(beta1=0.5)),
    "adam_none": (Rule.ADAM, Hyper(beta1=0.0, beta2=0.0)),
    "adamw": (Rule.ADAMW, Hyper(weight_decay=0.05)),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", HYPERS)
def test_an_optimizer_steps_as_its_formulas_say(name: str, dtype: DType, variant: bool) -> None:
    rule, hyper = HYPERS[name]
    rng = np.random.default_rng(7)
    for length in (1, 9, 1025, 3000):
        arrays = 1 if rule is Rule.SGD and not hyper.momentum else 2 if rule is Rule.SGD else 3
        wanted = [
            rng.normal(0, 1, length).astype(np.float32),
            *(np.zeros(length, np.float32) for _ in range(arrays - 1)),
        ]
        masters = [[array.copy() for array in wanted], [np.zeros_like(array) for array in wanted]]
        for step in range(1, STEPS + 1):
            gradients = [ordinary(rng, dtype, length) for _ in range(3)]
            outputs = [np.zeros(length, STORED[dtype]) for _ in range(3)]
            now, after = masters[(step - 1) % 2], masters[step % 2]
            kept = [array.copy() for array in now]

            aggregation.reduce(rule, dtype, gradients, outputs, step=step, hyper=hyper, masters=now, next_masters=after)

            mean = summed(gradients, dtype) / np.float32(3)
            wanted = step_of(rule, wanted, mean, step, hyper)
            for ours, right, before, untouched in zip(after, wanted, now, kept, strict=True):
                assert_same_bits(ours, right, DType.F32)
                assert before.tobytes() == untouched.tobytes()
            for output in outputs:
                assert_same_bits(output, narrow(wanted[0], dtype), dtype)


@pytest.mark.parametrize("name", HYPERS)
def test_any_bits_pass_an_optimizer_as_they_pass_its_formulas(name: str, variant: bool) -> None:
    rule, hyper = HYPERS[name]
    rng = np.random.default_rng(11)
    masters = [
        any_bits(rng, DType.F32, 4000)
        for _ in range(1 if rule is Rule.SGD and not hyper.momentum else 2 if rule is Rule.SGD else 3)
    ]
    gradients = [any_bits(rng, DType.F32, 4000) for _ in range(2)]
    mean = summed(gradients, DType.F32) / np.float32(2)
    wanted = step_of(rule, masters, mean, 3, hyper)
    output = np.zeros(4000, np.float32)

    aggregation.reduce(rule, DType.F32, gradients, [output], step=3, hyper=hyper, masters=masters)

    for ours, right in zip(masters, wanted, strict=True):
        assert_same_bits(ours, right, DType.F32)
    assert_same_bits(output, wanted[0], DType.F32)


@pytest.mark.parametrize("past_caches", [False, True])
def test_a_result_may_take_its_gradients_place(variant: bool, past_caches: bool) -> None:
    rng = np.random.default_rng(3)
    gradients = [ordinary(rng, DType.F32, 2500) for _ in range(4)]
    wanted = summed(gradients, DType.F32)

    aggregation.reduce(Rule.SUM, DType.F32, gradients, gradients, past_caches=past_caches)

    for output in gradients:
        assert_same_bits(output, wanted, DType.F32)


# ---- what is refused


def zeros(length: int = 16) -> Array:
    return np.zeros(length, np.float32)


@pytest.mark.parametrize(
    "hyper",
    [
        Hyper(lr=-1), Hyper(lr=float("nan")), Hyper(lr=float("inf")), Hyper(lr=1e39), Hyper(weight_decay=-1),
        Hyper(beta1=1), Hyper(beta1=-0.1), Hyper(beta2=1), Hyper(beta2=float("nan")), Hyper(eps=-1),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_optimizer_can_use_are_refused_and_nothing_is_written(hyper: Hyper) -> None:
    masters = [zeros() + 1 for _ in range(3)]
    output = zeros()

    with pytest.raises(EngineError, match="Invalid argument"):
        aggregation.reduce(Rule.ADAM, DType.F32, [zeros() + 1], [output], step=1, hyper=hyper, masters=masters)

    assert not output.any()
    assert all((array == 1).all() for array in masters)


def test_what_the_engine_can_not_reduce_is_refused() -> None:
    sgd_hyper = Hyper(nesterov=True)
    eight = np.zeros(8, np.float64)
    unaligned = memoryview(bytearray(65))[1:]
    refused: list[Callable[[], None]] = [
        lambda: aggregation.reduce(Rule.MEAN, DType.F64, [eight], [eight]),
        lambda: aggregation.reduce(
            Rule.ADAM, DType.I64, [eight], [eight], step=1, hyper=Hyper(), masters=[zeros(8)] * 3
        ),
        lambda: aggregation.reduce(Rule.SUM, DType.F32, [zeros()] * 65, []),
        lambda: aggregation.reduce(Rule.SUM, DType.F32, [], []),
        lambda: aggregation.reduce(Rule.SUM, DType.F32, [unaligned], []),
        lambda: aggregation.reduce(Rule.SGD, DType.F32, [zeros()], [], step=0, hyper=Hyper(), masters=[zeros()]),
        lambda: aggregation.reduce(Rule.SGD, DType.F32, [zeros()], [], step=1, hyper=sgd_hyper, masters=[zeros()]),
    ]

    for attempt in refused:
        with pytest.raises(EngineError, match="Invalid argument"):
            attempt()


def test_arrays_that_do_not_fit_each_other_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="the same number of whole elements"):
        aggregation.reduce(Rule.SUM, DType.F32, [zeros(4), zeros(5)], [])
    with pytest.raises(ValueError, match="ADAM needs 3 arrays of 4 float32"):
        aggregation.reduce(
            Rule.ADAM, DType.F16, [np.zeros(4, np.float16)], [], step=1, hyper=Hyper(), masters=[zeros(4)]
        )
    with pytest.raises(ValueError, match="SGD needs its numbers"):
        aggregation.reduce(Rule.SGD, DType.F32, [zeros(4)], [], masters=[zeros(4)])
