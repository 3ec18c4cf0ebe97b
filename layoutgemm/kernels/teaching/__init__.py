"""The 64x64 walkthrough kernel for Hopper and its plan."""
