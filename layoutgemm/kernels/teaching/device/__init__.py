"""Device code of the walkthrough kernel."""
