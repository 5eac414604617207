"""Observations from a model: a database that a world model plays, and a customer that a model or a script plays.

The grade never comes from the player: it is computed from the invented world, or from what was booked.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollbook.environments.builtin.common import Draft, Refused, Tool, ToolEpisode, call, code_digest, schema
from rollbook.environments.builtin.world import WorldEpisode, WorldQuestions
from rollbook.environments.describing import image_of
from rollbook.records import (
    Action,
    EnvironmentFault,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    Reply,
    Services,
    Solutions,
    Task,
    TaskSet,
    ToolCall,
    Ungraded,
)

Player = Literal["model", "script"]
LONGEST_REPLY = 4000
WORLD_PROMPT = ("You play a tool. Below are a database's tables and what one call of the tool really gives. Write only what the "
                "tool "
                "would show, in the same form: the first line names the columns, each further line is a row, values separated "
                "by ' | '.")
USER_PROMPT = ("You play a customer of a ferry company who writes short messages. You want to book: {wishes}. Answer only what "
               "you are "
               "asked. When the booking has been confirmed, write {over} alone.")
OVER = "<over>"
CUSTOMER_SYSTEM = ("You serve a customer of a ferry company. Ask what you need to know, then call `book` once with the "
                   "customer's wishes, "
                   "and confirm the booking.")
PORTS = ("Aldwick", "Brennhavn", "Corsey", "Drumoak", "Elsvik", "Fennport")
SLOTS = ("start", "destination", "day", "passengers", "cabin")
ASKED = {"start": ("from", "depart", "start"), "destination": ("where to", "destination", "going", "arriv"),
         "day": ("day", "date", "when"),
         "passengers": ("how many", "passenger", "people"), "cabin": ("cabin", "class")}
SAID = {"start": "I leave from {}.", "destination": "I want to go to {}.", "day": "On {}, please.", "passengers": "We are {}.",
        "cabin": "A {} cabin."}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorld:
    """The database questions of `world`, with each observation written by a model.

    With `grounded` the model sees what the tool really gives and retells it; without, only the tables and the call: a world model
    alone. Answers are graded by the real database in both.
    """

    themes: tuple[str, ...] = ("trade", "league", "letters")
    per_world: int = 8
    least_hops: int = 1
    grounded: bool = True

    def image(self) -> EnvironmentImage:
        return image_of(self, extra={"code": code_digest("common.py", "index.py", "world.py", "simulated.py", "fiction")})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        return self._questions().tasks(count=count, seed=seed)

    def build(self, *, services: Services, seed: int) -> SimulatedWorldEpisode:
        return SimulatedWorldEpisode(services=services, grounded=self.grounded)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        return self._questions().verify(task, state, services=services)

    def solutions(self, task: Task) -> Solutions:
        return self._questions().solutions(task)

    def _questions(self) -> WorldQuestions:
        return WorldQuestions(themes=self.themes, per_world=self.per_world, least_hops=self.least_hops)


@dataclass(slots=True)
class SimulatedWorldEpisode(WorldEpisode):
    """One question to a database whose answers a model writes."""

    services: Services = field(kw_only=True, repr=False)
    grounded: bool = True

    async def reset(self, task: Task) -> Observation:
        if self.services.ask is None:
            raise EnvironmentFault("nobody plays the world", code="reset", got="no model to ask",
                                   fix="give the run a model that plays environments, or use the environment `world`")
        return await WorldEpisode.reset(self, task)

    async def reply(self, call: ToolCall) -> Reply:
        real = await WorldEpisode.reply(self, call)
        if call.name == "schema" or call.name not in self.offered or self.services.ask is None or self.world is None:
            return real
        asked = json.dumps({"tool": call.name, "arguments": dict(call.arguments)}, sort_keys=True)
        given = f"Tables:\n{self.world.schema()}\n\nCall:\n{asked}"
        if self.grounded:
            given += f"\n\nWhat it gives:\n{real.content}"
        said = await self.services.ask((Message(role="system", content=WORLD_PROMPT, origin="environment"),
                                        Message(role="user", content=given, origin="environment")))
        return Reply(owner="environment", content=said[:LONGEST_REPLY], call=call.id,
                     error="flood" if len(said) > LONGEST_REPLY else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """A customer with wishes that the policy has to ask for, then to book. `player` is a script (a fixed one) or a model."""

    player: Player = "script"

    def image(self) -> EnvironmentImage:
        return image_of(self, extra={"code": code_digest("common.py", "simulated.py")})

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Customers with different wishes; the wishes are the split unit."""
        drawn = random.Random(f"customer/{seed}")
        seen: dict[str, Draft] = {}
        while len(seen) < count:
            start, destination = drawn.sample(PORTS, 2)
            wishes = {"start": start, "destination": destination, "day": f"day {drawn.randint(1, 365)}",
                      "passengers": str(drawn.randint(1, 9)), "cabin": drawn.choice(("inner", "outer", "suite"))}
            text = json.dumps(wishes, sort_keys=True)
            seen[text] = Draft(family="customer", text="Hello, I would like to book a ferry.", reference=text,
                               unit=f"customer:{text}",
                               start="customer", source="rollbook customers", predicate="customer.booking", tools=("book",),
                               lineage={"seed": str(seed), "number": str(len(seen))}, system=CUSTOMER_SYSTEM, domain="dialogue")
        pairs = [draft.records() for draft in seen.values()]
        return TaskSet(raw=tuple(raw for raw, _ in pairs), tasks=tuple(task for _, task in pairs))

    def build(self, *, services: Services, seed: int) -> CustomerEpisode:
        return CustomerEpisode(services=services, player=self.player)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """1.0 where exactly the wishes were booked, once."""
        wishes, booked = json.loads(task.reference), state.facts["bookings"]
        right = [slot for slot in SLOTS if booked and str(booked[-1].get(slot)).casefold() == wishes[slot].casefold()]
        return Grade(accuracy=float(len(booked) == 1 and len(right) == len(SLOTS)),
                     parts={"slots": len(right) / len(SLOTS), "bookings": float(len(booked))},
                     detail=f"{len(right)} of {len(SLOTS)} wishes, {len(booked)} bookings")

    def solutions(self, task: Task) -> Solutions:
        wishes = json.loads(task.reference)
        ask = Action(text="From which port, and what is your destination? Which day, how many passengers, and which cabin?")
        wrong = {**wishes, "passengers": str(int(wishes["passengers"]) + 1)}
        end = Action(text="Your booking is confirmed.")
        return Solutions(gold=((ask, call("book", **wishes), end),),
                         wrong=((ask, call("book", **wrong), end), (ask, call("book", **wishes), call("book", **wishes)),
                                (ask, end), (end,)))


@dataclass(slots=True)
class CustomerEpisode(ToolEpisode):
    """One conversation: what the policy says is answered by the customer, until the booking is confirmed."""

    services: Services = field(kw_only=True, repr=False)
    player: Player = "script"
    wishes: Mapping[str, str] = field(default_factory=dict)
    bookings: tuple[Mapping[str, Any], ...] = ()
    said: tuple[tuple[str, str], ...] = ()           # (role for the player, text)

    async def reset(self, task: Task) -> Observation:
        if self.player == "model" and self.services.ask is None:
            raise EnvironmentFault("nobody plays the customer", code="reset", got="no model to ask", fix="set player = script")
        self.wishes = json.loads(task.reference)
        about = schema("book", "Books a ferry.", SLOTS, **{slot: {"type": "string"} for slot in SLOTS})
        self.offered = {"book": Tool(schema=about, run=self._book)}
        return Observation()

    async def act(self, action: Action) -> Observation:
        if action.calls:
            return await ToolEpisode.act(self, action)
        self.answer = action.text
        self.said += (("user", action.text),)
        text = await self._modelled() if self.player == "model" else self._scripted(action.text)
        self.said += (("assistant", text),)
        if OVER in text:
            self.ended = "terminal"
            return Observation(ended="terminal")
        return Observation(replies=(Reply(owner="user_simulator", content=text[:LONGEST_REPLY]),))

    def _book(self, arguments: Mapping[str, Any]) -> str:
        if len(self.bookings) >= 5:
            raise Refused("no more bookings for this customer")
        self.bookings += (dict(arguments),)
        return f"booked: {json.dumps(dict(arguments), sort_keys=True)}"

    def _scripted(self, text: str) -> str:
        """Answers what is asked, ends after a booking and its confirmation, and asks back otherwise."""
        asked = [slot for slot in SLOTS if any(word in text.casefold() for word in ASKED[slot])]
        if self.bookings and not text.rstrip().endswith("?"):
            return OVER
        return " ".join(SAID[slot].format(self.wishes[slot]) for slot in asked) or "What do you need to know?"

    async def _modelled(self) -> str:
        assert self.services.ask is not None
        wishes = ", ".join(f"{slot}: {self.wishes[slot]}" for slot in SLOTS)
        system = Message(role="system", content=USER_PROMPT.format(wishes=wishes, over=OVER), origin="environment")
        turns = [Message(role="user" if role == "user" else "assistant", content=text, origin="environment") for role,
                 text in self.said]
        return await self.services.ask((system, *turns))

    def facts(self) -> dict[str, Any]:
        return {"bookings": [dict(booking) for booking in self.bookings]}

    def saved(self) -> dict[str, Any]:
        return {"bookings": [dict(booking) for booking in self.bookings], "said": [list(turn) for turn in self.said]}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.bookings, self.said = tuple(saved["bookings"]), tuple((role, text) for role, text in saved["said"])
