"""`farside sim`: traces and options in, figures out. What decides and counts is in `farside.scheduler`."""
