"""Believe it? Fourteen detectors over the artifacts of a run, replay of its updates, export of the whole."""
