"""Groups of co-located jobs on a virtual clock, beside jobs with machines of their own. PURE."""
