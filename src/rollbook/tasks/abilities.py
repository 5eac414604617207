"""Suites of abilities that a run does not train and should not lose: instructions, format, general chat, tools.

Programs write the tasks and what decides about an answer, so that every verdict can be checked; none is of a benchmark.

* instructions: write about a topic under one or two of IFEval's instructions (arXiv 2311.07911); a rule reads each
* format: say facts as a JSON document of a given shape; a schema reads it
* chat: short everyday questions with one right answer; a pattern reads it
* tools: tools are described as in Hermes' prompts; the one right call with its arguments, of several types, is wanted
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from rollbook.records import Budget, Message, RawTask, Task, content_id
from rollbook.records.composition import ComposedReward, Part
from rollbook.records.suites import Ability
from rollbook.tasks.errors import TaskError

ABILITIES: tuple[Ability, ...] = get_args(Ability)
VERSION = "1"
DRAWS = 60          # for each task that is wanted: many draws are equal
TOPICS = ("a lighthouse in winter", "the first day at a new school", "a market in the early morning", "an old bridge",
          "growing tomatoes on a balcony", "a night train", "why people keep dogs", "learning to swim", "a town without cars",
          "the smell of bread", "a letter that arrives late", "repairing a clock", "the view from a hill", "a lost umbrella",
          "how a library helps its town", "a walk in the fog", "cooking for ten people", "the sound of rain on a roof")
WORDS = ("river", "quiet", "window", "summer", "friend", "paper", "garden", "colour", "stone", "music", "village", "morning")
ENDINGS = ("That is all.", "Thank you for reading.", "And so it began.", "Ask me anything else.")
NAMES = ("Mira", "Tomas", "Aylin", "Jonas", "Ruth", "Pavel", "Noor", "Elif", "Oskar", "Ines")
CITIES = ("Oslo", "Porto", "Graz", "Lyon", "Bergen", "Turin", "Vilnius", "Cork")
FRUITS = ("apples", "pears", "plums", "figs", "lemons", "cherries")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A task as text: its family, what is asked, what its verifier compares with, and what a system message says first."""

    family: str
    prompt: str
    reference: str
    system: str = ""


def reward_of(ability: Ability) -> ComposedReward:
    """What decides about an answer of a suite: one verifier, right or wrong."""
    part = {"instructions": Part(measure="instructions"),
            "format": Part(measure="json_schema"),
            "chat": Part(measure="pattern", settings={"extract": "whole", "whole": False, "ignore_case": True}),
            "tools": Part(measure="json_schema", settings={"extract": "tag:tool_call"})}[ability]
    return ComposedReward(name=ability, parts={"right": part}, accuracy="right", verify_seconds=5.0, verify_workers=1)


def ability_tasks(ability: Ability, *, count: int, seed: int, max_tokens: int) -> tuple[tuple[RawTask, ...], tuple[Task, ...]]:
    """`count` different tasks of a suite with what they were made from; TaskError where there are not so many."""
    rng, found = random.Random(f"abilities/{ability}/{seed}"), {}
    for _ in range(DRAWS * count):
        asked = WRITERS[ability](rng)
        found.setdefault((asked.system, asked.prompt), asked)
        if len(found) == count:
            break
    if len(found) < count:
        raise TaskError(f"the suite {ability} has no {count} different tasks", got=str(len(found)), fix=f"ask for {len(found)}")
    pairs = [_records(ability, place, seed, asked, max_tokens) for place, asked in enumerate(found.values())]
    return tuple(raw for raw, _ in pairs), tuple(task for _, task in pairs)


def _records(ability: Ability, place: int, seed: int, asked: Asked, max_tokens: int) -> tuple[RawTask, Task]:
    texts = [("system", asked.system), ("user", asked.prompt)] if asked.system else [("user", asked.prompt)]
    raw = RawTask(source=f"abilities/{ability}/{VERSION}", licence="Apache-2.0", acquired_at="2026-11-30",
                  content="\n".join(text for _, text in texts), language="en", domain=ability, sensitive=(),
                  lineage={"seed": str(seed), "place": str(place)})
    return raw, Task(raw=content_id(raw), family=asked.family, reference=asked.reference, predicate=f"abilities.{ability}",
                     prompt=tuple(Message(role=role, content=text, origin="raw") for role, text in texts),  # type: ignore[arg-type]
                     canonical=f"{ability}:{raw.content}", initial_state="prompt", tools=(), budget=Budget(max_tokens=max_tokens),
                     termination=("end_of_turn", "length"))


def _instructions(rng: random.Random) -> Asked:
    chosen = rng.sample(INSTRUCTIONS, rng.choice((1, 1, 2)))
    if set(chosen) in CLASHES:
        chosen = chosen[:1]
    made = [one(rng) for one in chosen]
    told = " ".join(text for text, _, _ in made)
    reference = [{"id": name, "arguments": dict(arguments)} for _, name, arguments in made]
    return Asked(family=made[0][1], prompt=f"Write about {rng.choice(TOPICS)}. {told}", reference=json.dumps(reference))


Instruction = tuple[str, str, Mapping[str, Any]]


def _keywords(rng: random.Random) -> Instruction:
    words = sorted(rng.sample(WORDS, 2))
    return f'Use the words "{words[0]}" and "{words[1]}".', "keywords:existence", {"keywords": words}


def _forbidden(rng: random.Random) -> Instruction:
    words = sorted(rng.sample(WORDS, 2))
    return f'Do not use the words "{words[0]}" and "{words[1]}".', "keywords:forbidden_words", {"forbidden_words": words}


def _short(rng: random.Random) -> Instruction:
    count = rng.choice((20, 30, 40))
    return f"Use fewer than {count} words.", "length_constraints:number_words", {"num_words": count, "relation": "less than"}


def _long(rng: random.Random) -> Instruction:
    count = rng.choice((3, 4))
    return (f"Write at least {count} sentences.", "length_constraints:number_sentences",
            {"num_sentences": count, "relation": "at least"})


def _bullets(rng: random.Random) -> Instruction:
    count = rng.choice((2, 3, 4))
    return (f"Answer in exactly {count} bullet points, each on a line of its own that begins with an asterisk.",
            "detectable_format:number_bullet_lists", {"num_bullets": count})


def _title(rng: random.Random) -> Instruction:
    return "Give it a title in double angular brackets, such as <<a title>>.", "detectable_format:title", {}


def _blanks(rng: random.Random) -> Instruction:
    count = rng.choice((1, 2, 3))
    return (f"Leave at least {count} placeholder{'s' if count > 1 else ''} in square brackets, such as [name].",
            "detectable_content:number_placeholders", {"num_placeholders": count})


def _postscript(rng: random.Random) -> Instruction:
    return "Add a postscript that begins with P.S.", "detectable_content:postscript", {"postscript_marker": "P.S."}


def _capitals(rng: random.Random) -> Instruction:
    return "Write in English, in capital letters only.", "change_case:english_capital", {}


def _small(rng: random.Random) -> Instruction:
    return "Write in English, without any capital letter.", "change_case:english_lowercase", {}


def _commas(rng: random.Random) -> Instruction:
    return "Use no comma.", "punctuation:no_comma", {}


def _ending(rng: random.Random) -> Instruction:
    phrase = rng.choice(ENDINGS)
    return f'End with exactly these words: "{phrase}"', "startend:end_checker", {"end_phrase": phrase}


INSTRUCTIONS: tuple[Callable[[random.Random], Instruction], ...] = (
    _keywords, _forbidden, _short, _long, _bullets, _title, _blanks, _postscript, _capitals, _small, _commas, _ending)


CLASHES = ({_capitals, _small}, {_keywords, _forbidden})        # what no text can follow both of


def _format(rng: random.Random) -> Asked:
    name, city, age = rng.choice(NAMES), rng.choice(CITIES), rng.randint(18, 80)
    fruits = rng.sample(FRUITS, rng.choice((2, 3)))
    facts = {"name": name, "city": city, "age": age, "likes": fruits, "member": rng.random() < 0.5}
    keys = ["name", *sorted(rng.sample([key for key in facts if key != "name"], rng.choice((1, 2, 3))))]
    told = {"name": f"{name} is a person.", "city": f"{name} lives in {city}.", "age": f"{name} is {age} years old.",
            "likes": f"{name} likes {', '.join(fruits)}.", "member": f"{name} is {'' if facts['member'] else 'not '}a member."}
    kinds = {"name": "a text", "city": "a text", "age": "a number", "likes": "a list of texts", "member": "true or false"}
    shape = ", ".join(f'"{key}" ({kinds[key]})' for key in keys)
    schema = {"type": "object", "properties": {key: {"const": facts[key]} for key in keys}, "required": keys,
              "additionalProperties": False}
    said = " ".join(told[key] for key in keys)
    return Asked(family=f"format:{len(keys)} keys", reference=json.dumps(schema),
                 prompt=f"{said} Say this as one JSON object with the keys {shape}, and nothing else.")


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")
FACTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "opposite": (("hot", "cold"), ("big", "small|little"), ("early", "late"), ("dark", "light|bright"), ("full", "empty"),
                 ("wet", "dry"), ("high", "low"), ("open", "closed?|shut"), ("young", "old"), ("strong", "weak"),
                 ("first", "last"), ("push", "pull"), ("day", "night"), ("win", "lose"), ("buy", "sell")),
    "plural": (("child", "children"), ("mouse", "mice"), ("foot", "feet"), ("leaf", "leaves"), ("city", "cities"),
               ("box", "boxes"), ("tooth", "teeth"), ("woman", "women"), ("knife", "knives"), ("goose", "geese")),
    "capital": (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"), ("Egypt", "Cairo"), ("Spain", "Madrid"),
                ("Germany", "Berlin"), ("Canada", "Ottawa"), ("Greece", "Athens"), ("Norway", "Oslo"), ("Poland", "Warsaw"),
                ("Ireland", "Dublin"), ("Austria", "Vienna"), ("Kenya", "Nairobi"), ("Peru", "Lima"), ("Cuba", "Havana")),
    "young": (("dog", "puppy|puppies|pup"), ("cat", "kitten"), ("cow", "calf"), ("sheep", "lamb"), ("horse", "foal"),
              ("bear", "cub"), ("duck", "duckling"), ("frog", "tadpole|froglet"), ("hen", "chick"), ("goat", "kid"))}
QUESTIONS = {"opposite": "What is the opposite of {}?", "plural": "What is the plural of {}?",
             "capital": "What is the capital of {}?", "young": "What is a young {} called?"}


def _chat(rng: random.Random) -> Asked:
    kind = rng.choice((*QUESTIONS, "day after", "month after"))
    if kind in QUESTIONS:
        about, answer = rng.choice(FACTS[kind])
        question = QUESTIONS[kind].format(about)
    else:
        names = DAYS if kind == "day after" else MONTHS
        place = rng.randrange(len(names))
        answer, question = names[(place + 1) % len(names)], f"Which {kind.split()[0]} comes after {names[place]}?"
    led = rng.choice(("", "Hi! ", "A quick question: ", "Please tell me. "))
    return Asked(family=f"chat:{kind}", prompt=f"{led}{question}", reference=rf"\b(?:{answer})\b")


TOOLS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("weather", "The weather in a city on one of the next days.", {"city": "string", "days": "integer"}),
    ("reminder", "Reminds of something at an hour of the day.", {"text": "string", "hour": "integer", "loud": "boolean"}),
    ("convert", "An amount in another currency.", {"amount": "number", "to": "string"}),
    ("shopping", "Puts things on the shopping list.", {"items": "array"}))


def described(name: str, told: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """A tool as a chat template is given it."""
    kinds = {key: {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
             for key, kind in parameters.items()}
    return {"type": "function", "function": {"name": name, "description": told, "parameters": {
        "type": "object", "properties": kinds, "required": list(parameters)}}}


def _tools(rng: random.Random) -> Asked:
    name, _, _ = wanted = rng.choice(TOOLS)
    city, hour, amount = rng.choice(CITIES), rng.randint(1, 23), rng.choice((12.5, 30.25, 99.5, 7.75))
    fruits, days, loud = rng.sample(FRUITS, 2), rng.randint(1, 6), rng.random() < 0.5
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "weather": (f"What will the weather be like in {city} in {days} days?", {"city": city, "days": days}),
        "reminder": (f'Remind me of "call {city}" at {hour} o\'clock{", loudly" if loud else ", and not loudly"}.',
                     {"text": f"call {city}", "hour": hour, "loud": loud}),
        "convert": (f"How much is {amount} in {rng.choice(('EUR', 'NOK', 'PLN'))}?", {}),
        "shopping": (f"Put {fruits[0]} and {fruits[1]} on my shopping list.", {"items": fruits})}
    asked, arguments = calls[name]
    if name == "convert":
        arguments = {"amount": amount, "to": re.findall(r"[A-Z]{3}", asked)[0]}
    offered = [*rng.sample([one for one in TOOLS if one is not wanted], rng.choice((0, 1, 2))), wanted]
    listed = "\n".join(json.dumps(described(*one)) for one in sorted(offered, key=lambda one: one[0]))
    schema = {"type": "object", "properties": {"name": {"const": name}, "arguments": {"const": arguments}},
              "required": ["name", "arguments"]}
    return Asked(family=f"tools:{name}", prompt=asked, reference=json.dumps(schema), system=(
        f"You may call tools. They are described in <tools></tools>:\n<tools>\n{listed}\n</tools>\nCall one by writing\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'))


WRITERS: Mapping[Ability, Callable[[random.Random], Asked]] = {
    "instructions": _instructions, "format": _format, "chat": _chat, "tools": _tools}
