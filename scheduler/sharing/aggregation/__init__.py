"""Which Aggregators hold which jobs' tensors, and how many Aggregators there are. PURE."""
