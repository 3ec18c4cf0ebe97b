"""Other implementations as oracles, each in a process of its own."""
