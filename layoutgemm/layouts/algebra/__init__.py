"""Composition, divides, products, inverses and recasts of integer layouts."""
