"""The environments that come with Rollbook; each is named in a spec by the import path of its definition."""
