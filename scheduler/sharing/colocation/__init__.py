"""Which jobs share the same machines, taking turns at computing and communicating. PURE."""
