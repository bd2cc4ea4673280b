"""A Flower app that votes, then trains a little: for trials."""
