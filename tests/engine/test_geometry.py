"""Sizes that Python's side states by itself, because pure modules know no engine."""

from farside import geometry
from farside.kmod_shim.engine import binding


def test_python_and_c_agree_on_pages_and_granules() -> None:
    assert (geometry.PAGE_BYTES, geometry.GRANULE_BYTES) == (binding.PAGE_BYTES, binding.GRANULE_BYTES)
    assert geometry.SLABS_MAX == binding.SLABS_MAX
