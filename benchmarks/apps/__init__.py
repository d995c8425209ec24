"""Applications that page to a throttled disk, to remote memory of others, and to Farside's, in virtual machines."""
