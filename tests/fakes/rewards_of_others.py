"""Reward functions as users of TRL and of verl write them."""


def trl_length(prompts, completions, answer, **kwargs):
    """TRL: a list of floats; text or messages; columns come as lists, and a row may have no reward."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [None if want == "?" else float(want in text) for text, want in zip(texts, answer, strict=True)]


def trl_wild(prompts, completions, **kwargs):
    return [7.5 for _ in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl: a float, or a mapping with the score."""
    if extra_info and extra_info.get("crash"):
        raise RuntimeError("no score")
    return {"score": 1.0 if solution_str.strip() == ground_truth else 0.0, "acc": 1}
