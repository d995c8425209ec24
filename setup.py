"""What pyproject.toml cannot say: how the C engine is built, and the library that is preloaded into jobs."""

import runpy

from setuptools import setup

preload = runpy.run_path("src/farside/agent/profile/build_preload.py")

setup(
    ext_modules=[preload["library"]()],
    cmdclass={"build_ext": preload["BuildPlainly"]},
    cffi_modules=["src/farside/kmod_shim/engine/build_ffi.py:ffibuilder"],
    # The engine's module is of the stable ABI, and the library that is preloaded has nothing of Python: one wheel
    # serves every Python from 3.11 on, also one that a user's job brings.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
