"""Did it improve: protocols, statistics, comparisons."""
