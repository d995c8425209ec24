"""The code behind `farside sim`."""
