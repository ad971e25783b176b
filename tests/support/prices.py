"""A file of prices: of the scripted model, and of models that cost much."""

PRICES = '[scripted]\ninput = 0.25\ncached_input = 0.025\noutput = 2\n["dear-*"]\ninput = 1000\noutput = 1000\n'
