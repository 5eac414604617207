"""What to learn: admission, credit, packed batches."""
