# What cffi builds from engine.h. Only binding.py imports it; binding.py is the typed face.
from typing import Any

ffi: Any
lib: Any
