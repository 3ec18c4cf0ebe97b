"""Parts of a product that kernels of several architectures have. Several matrices B, a gate, a second pair."""
