"""Inference on parts of GPUs: profiles, plans, their checker, and the schedulers that make plans. PURE."""
