"""Names of HTTP headers that manager and clients share."""

IDEMPOTENCY_KEY = "Idempotency-Key"
"""The client's own key of a request that may come twice; munge's mark of a request covers it."""
TAKES = "Farside-Takes"
"""In the manager's answers: the headers of requests that it knows."""
