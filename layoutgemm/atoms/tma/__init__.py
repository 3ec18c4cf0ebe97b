"""TMA boxes, tensor maps and multicast, derived from a tile."""
