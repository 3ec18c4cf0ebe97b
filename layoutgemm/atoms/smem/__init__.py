"""Shared-memory tiles and the descriptors that name them.

tile                    which swizzle (128, 64, 32 bytes or none) a tile of an operand has, and its layout
operand_read            the part of a tile that one instruction reads
canonical_layouts       the layouts that wgmma and tcgen05 can read, by major mode and swizzle
descriptor              the 64-bit word that makes an instruction read a layout: leading and stride byte offsets
descriptor_words        that word's fields, encoded and decoded
instruction_descriptor  tcgen05.mma's 32-bit word of shape and types, which is no matter of shared memory
bit_fields, describe    tables of bit fields; words explained and compared at a prompt
"""
