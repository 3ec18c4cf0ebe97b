"""Groups of rows and along K in persistent kernels: tiles, loads and stores."""
