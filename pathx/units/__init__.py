"""What a unit looks for: the images and places where a channel matters most, gathered over a folder."""
