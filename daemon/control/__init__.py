"""The control protocol between borrower and donor."""
