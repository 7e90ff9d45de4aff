"""Models by name or file, with the preprocessing and the labels that belong to them."""
