"""Tests of what others have, taken and given back."""
