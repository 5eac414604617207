"""What is known: claims with labels and scope."""
