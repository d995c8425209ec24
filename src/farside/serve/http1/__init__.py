"""HTTP/1.1 as the HTTP door speaks it: requests with bodies, answered one after the other."""
