"""Sharding rules of operators with scales, of groups, and of packed weights."""
