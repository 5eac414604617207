"""The current policy behind an OpenAI-compatible address, with every call recorded by its exact ids."""
