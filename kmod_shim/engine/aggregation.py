"""Python face of the engine's aggregation calls: what each does, its limits and its errors are in `engine.h`.

Arrays are anything with a buffer that lies in one piece: NumPy arrays, memory views, bytes. Nothing is copied, and the
engine keeps no address after a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

from farside.errors import EngineError
from farside.kmod_shim.engine.binding import ffi, lib

Buffer: TypeAlias = Any  # collections.abc.Buffer, which comes with Python 3.12
MEMBERS_MAX: int = lib.NE_MEMBERS_MAX


class DType(IntEnum):
    """Number format of gradients and results. The last three can only be summed."""

    F32 = lib.NE_DTYPE_F32
    F16 = lib.NE_DTYPE_F16
    BF16 = lib.NE_DTYPE_BF16
    F64 = lib.NE_DTYPE_F64
    I32 = lib.NE_DTYPE_I32
    I64 = lib.NE_DTYPE_I64

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.F64: 8, DType.I32: 4, DType.I64: 8}


class Rule(IntEnum):
    """What becomes of the members' gradients."""

    SUM = lib.NE_RULE_SUM
    MEAN = lib.NE_RULE_MEAN
    SGD = lib.NE_RULE_SGD
    ADAM = lib.NE_RULE_ADAM
    ADAMW = lib.NE_RULE_ADAMW


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper:
    """An optimizer's numbers, named and preset as in torch.optim.Adam; ``momentum`` and ``nesterov`` are SGD's."""

    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    nesterov: bool = False


def reduce(
    rule: Rule,
    dtype: DType,
    gradients: Sequence[Buffer],
    outputs: Sequence[Buffer],
    *,
    step: int = 0,
    hyper: Hyper | None = None,
    masters: Sequence[Buffer] = (),
    next_masters: Sequence[Buffer] | None = None,
) -> None:
    """Reduces one chunk's gradients, given in rank order, into every one of ``outputs``.

    Args:
        rule: Sum, mean, or an optimizer's step with the mean.
        dtype: Number format of gradients and outputs.
        gradients: 1 to 64 arrays of equally many elements of ``dtype``.
        outputs: Writable arrays of the same length; one may be a gradient itself.
        step: An optimizer's: number of this chunk's update, from 1.
        hyper: An optimizer's numbers.
        masters: An optimizer's arrays of float32: parameters, then momentum or the two moments.
        next_masters: Where those go after the step; None: in place.

    Raises:
        ValueError: arrays differ in length, or an optimizer lacks an array.
        EngineError: the engine refuses rule, format or numbers (EINVAL); nothing was written.
    """
    views = [ffi.from_buffer(array) for array in gradients]
    writable = [ffi.from_buffer(array, require_writable=True) for array in outputs]
    before = [ffi.from_buffer(array) for array in masters]
    after = [
        ffi.from_buffer(array, require_writable=True) for array in (masters if next_masters is None else next_masters)
    ]
    size_bytes = len(views[0]) if views else 0
    count = size_bytes // dtype.item_bytes
    needed = _masters(rule, hyper)
    if any(len(view) != size_bytes for view in (*views, *writable)) or size_bytes % dtype.item_bytes:
        raise ValueError("gradients and outputs must have the same number of whole elements")
    if len(before) < needed or len(after) < needed or any(len(view) != 4 * count for view in (*before, *after)):
        raise ValueError(f"{rule.name} needs {needed} arrays of {count} float32 before and after the step")

    asked = ffi.new("struct ne_reduction *")
    asked.dtype, asked.rule, asked.count, asked.step = dtype, rule, count, step
    asked.members, asked.results = len(views), len(writable)
    # cffi frees an array with the last reference to it, and a struct that points to it holds none.
    pointers = ffi.new("void *[]", [ffi.cast("void *", view) for view in views])
    results = ffi.new("void *[]", [ffi.cast("void *", view) for view in writable])
    asked.gradients = ffi.cast("const void *const *", pointers)
    asked.outputs = results
    for index in range(needed):
        # "from" is a word of Python's, so this field can't be written as an attribute.
        getattr(asked, "from")[index] = ffi.cast("float *", before[index])
        asked.to[index] = ffi.cast("float *", after[index])
    _set_hyper(asked.hyper, hyper)
    err = lib.ne_reduce(asked)
    if err < 0:
        raise EngineError("reduce", -err)


def _masters(rule: Rule, hyper: Hyper | None) -> int:
    if rule in (Rule.SUM, Rule.MEAN):
        return 0
    if hyper is None:
        raise ValueError(f"{rule.name} needs its numbers (hyper)")
    if rule is Rule.SGD:
        return 2 if hyper.momentum > 0 else 1
    return 3


def _set_hyper(raw: Any, hyper: Hyper | None) -> None:
    if hyper is not None:
        for name in Hyper.__slots__:
            setattr(raw, name, getattr(hyper, name))


def use_portable(portable: bool) -> bool:
    """Gives up the CPU's vector instructions, or takes them again; True when without. For tests and measurements."""
    return bool(lib.ne_reduce_portable(portable))
