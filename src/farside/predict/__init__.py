"""What `farside predict` does: logs in, models and tables out."""

from farside.predict.fit import fit_gpu_time, quality_table
from farside.predict.rebalance import rebalance_tables

__all__ = ["fit_gpu_time", "quality_table", "rebalance_tables"]
