"""Tests of layoutgemm; a package, so that test files may share names and helpers."""
