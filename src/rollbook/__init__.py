"""Rollbook: post-training for language models, on the record."""

__version__ = "0.1.0"
