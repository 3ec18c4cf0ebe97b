"""Which configuration runs a problem on Hopper, and why."""
