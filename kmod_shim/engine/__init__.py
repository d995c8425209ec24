"""The C data engine behind one header, engine.h, and its one Python face, binding.py."""
