"""The borrower's side of each donor: control connection, data connections, leases."""
