"""Row indices of several architectures.

They choose the rows of A that are gathered, and those of C that are scattered.
"""
