"""A file of prices: of the scripted model, and of models that cost much."""

PRICES = """
[scripted]
input = 0.25
cached_input = 0.025
output = 2
[embedder]
input = 0.02
output = 0
["dear-*"]
input = 1000
cache_write = 1000
output = 1000
"""
