"""Pictures that are diagrams rather than grids: pipelines, and tensor memory."""
