"""The C data engine behind one header, engine.h, and its Python binding, binding.py."""
