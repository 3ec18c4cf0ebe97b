"""Matrix products of warps and warpgroups: mma.sync and wgmma."""
