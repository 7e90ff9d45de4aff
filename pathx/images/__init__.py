"""Which images a user means, and reading them."""
