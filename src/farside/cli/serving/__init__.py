"""The code behind `farside serve`."""
