"""Whether to believe a run: detectors over its artifacts, replay of its updates."""
