"""TMA boxes, tensor maps and multicast, derived from a tile.

derive      tma_load, tma_store: the tensor map of a global layout and a shared one
box         how large a box is: the rectangle of the tensor that shared memory holds in order
rules       limits of boxes, pitches, addresses and swizzles
suggest     the nearest request that works, for a refusal
plan        the derived copy: boxes, coordinates, shared offsets, bytes
multicast   shares of a tile that the CTAs of a cluster send to each other
engine      loads, stores and reductions in NumPy
gather, im2col   loads of four chosen rows; loads of convolution windows
"""
