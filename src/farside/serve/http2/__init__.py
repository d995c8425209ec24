"""HTTP/2 as a server of unary gRPC calls needs it: frames, one connection's state, and what gRPC puts into both."""
