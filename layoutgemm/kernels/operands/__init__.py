"""Parts of a product that kernels of several architectures have: several matrices B, a gate, a second pair."""
