"""Donors as the borrower sees them: control connections, data connections, leases."""
