"""Who answers: weights, tokenizers, chat templates, the one log-prob function."""
