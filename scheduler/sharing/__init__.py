"""Decisions on nodes that several jobs share at once, beyond whole GPUs. PURE."""
