"""A bound on how much comes at once and how much a second: tokens that are taken and come back. PURE."""


class TokenBucket:
    """Tokens of one kind; more may be taken than there are, and are owed then.

    Args:
        most: How many there are at first, and at most.
        each_s: How many come back a second.
        now_s: When it is made; a moment before the last one counts as the last one.
    """

    def __init__(self, most: float, each_s: float, now_s: float) -> None:
        self.most, self.each_s = most, each_s
        self._left, self._at_s = most, now_s

    def left(self, now_s: float) -> float:
        """How many there are; a negative number is owed."""
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(now_s, self._at_s)
        self._left = min(self.most, self._left + passed_s * self.each_s)
        return self._left

    def take(self, count: float, now_s: float) -> None:
        """Take some, whether they are there or not."""
        self._left = self.left(now_s) - count

    def wait_s(self, count: float, now_s: float) -> float:
        """Seconds until there are as many as `count`; 0 where there are."""
        return max(0.0, (count - self.left(now_s)) / self.each_s)
