"""How long a test waits for what has to happen: what is slow on a busy machine is no failure, what never comes is."""

PATIENCE_S = 60
