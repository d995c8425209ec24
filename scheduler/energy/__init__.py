"""Energy saving: forecasts of busy nodes, and policies that let unneeded nodes sleep."""
