"""Torch implementations of the draw and the radius, shared by miner and validator (docs/adr/0001).

Nothing else in protocol imports this package, and the gateway never does.
"""
