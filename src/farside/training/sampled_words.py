"""A few elements of a tensor, by which a change of all of them is noticed that PyTorch does not count.

A clipped or unscaled gradient would be ignored silently: what counts was pushed before. PyTorch counts changes in place
(`Tensor._version`), but for those through `.data` or NumPy. So a few words are compared too, read where they lie
without a call of PyTorch's.
"""

import ctypes
from typing import Any

WORDS = 4  # of a tensor; a scale changes every one of them that is not 0
STRIDE = 0x9E3779B1  # odd, and far from a multiple of anything that tensors are made of
_TYPES = {2: ctypes.c_uint16, 4: ctypes.c_uint32}


def sampled_at(count: int) -> tuple[int, ...]:
    """Elements of a tensor that are looked at."""
    return tuple(sorted({(place + 1) * STRIDE % count for place in range(WORDS)}))


def words_of(tensor: Any, places: tuple[int, ...]) -> tuple[int, ...]:
    """The bits of these elements, counted in the order of the shape whatever the strides. The tensor is on a CPU."""
    kind, base, item = _TYPES[tensor.element_size()], tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous():
        return tuple(kind.from_address(base + item * place).value for place in places)
    shape, strides = tensor.shape, tensor.stride()
    return tuple(kind.from_address(base + item * _offset(place, shape, strides)).value for place in places)


def _offset(place: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    offset = 0
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        place, index = divmod(place, size)
        offset += index * stride
    return offset
