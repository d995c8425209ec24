"""Shared aggregation in the manager: which chunk of which job is at which node's Aggregator, by the log. PURE."""
