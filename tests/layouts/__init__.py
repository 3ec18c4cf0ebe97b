"""Tests of the layout algebra against definitions, reference vectors and other implementations."""
