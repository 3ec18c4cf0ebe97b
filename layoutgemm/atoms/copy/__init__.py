"""Copy atoms: the thread-value layouts of source and destination."""

from ...moved import old_names

__getattr__ = old_names(__name__)
