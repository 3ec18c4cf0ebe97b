"""Copy atoms: the thread-value layouts of source and destination."""
