"""What a donor's admin socket says of it, as far as an agent looks."""

from typing import Any

SESSIONS = [{"borrower": f"b{count}", "connected": True, "silent_s": 0.0, "slabs": count} for count in range(70)]
DONOR: dict[str, Any] = {
    "node": "d1", "listen": ["unix:/run/d.sock", "tcp:0.0.0.0:7677"], "has_rdma": True, "closing": False,
    "draining": False, "slab_bytes": 1 << 26, "memory": {"slabs_bytes": 99, "free_slabs": 3}, "sessions": SESSIONS,
}  # fmt: skip
