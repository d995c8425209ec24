"""The one thing that pyproject.toml cannot say: how the C engine is built."""

from setuptools import setup

setup(cffi_modules=["src/farside/kmod_shim/engine/build_ffi.py:ffibuilder"])
