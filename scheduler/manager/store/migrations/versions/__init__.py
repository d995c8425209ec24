"""Migrations, a file each."""
