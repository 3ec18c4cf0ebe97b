"""Device code of the streamed kernel."""
