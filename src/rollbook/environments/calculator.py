"""Sums that are hard in the head and easy with a tool: the smallest environment whose policy has to call one."""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass

from rollbook.environments.describing import image_of
from rollbook.records import (
    Action,
    Budget,
    EnvironmentImage,
    FinalState,
    Grade,
    Message,
    Observation,
    RawTask,
    Reply,
    Services,
    Snapshots,
    Solutions,
    Task,
    TaskSet,
    ToolCall,
    ToolSchema,
    Ungraded,
    content_id,
)

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"],
              "additionalProperties": False}
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
LONGEST = 200            # characters of an expression
LARGEST = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculator:
    """Sums of `terms` numbers between `low` and `high`, and a tool that computes; the answer is the last number said.

    `shortcut`: `=` alone says the tool's last result, so that the call is what has to be learnt.
    """

    terms: int = 2
    low: int = 10
    high: int = 99
    system_prompt: str = ""
    tool: str = "calculator"
    shortcut: bool = False

    def image(self) -> EnvironmentImage:
        return image_of(self)

    def tasks(self, *, count: int, seed: int) -> TaskSet:
        """Distinct sums; the split unit is the multiset of the numbers."""
        drawn = random.Random(f"calculator/{seed}")
        system = (Message(role="system", content=self.system_prompt, origin="recipe"),) if self.system_prompt else ()
        pairs: dict[str, tuple[RawTask, Task]] = {}
        for index in range(50 * count):
            numbers = [drawn.randint(self.low, self.high) for _ in range(self.terms)]
            text = f"{' + '.join(map(str, numbers))} ="
            raw = RawTask(source="rollbook calculator", licence="CC0-1.0", acquired_at="2026-11-30", content=text, language="en",
                          domain="arithmetic", sensitive=(), lineage={"generator": "calculator", "seed": str(seed),
                                                                      "index": str(index)})
            prompt = (*system, Message(role="user", content=text, origin="raw"))
            task = Task(raw=content_id(raw), family="calculator", prompt=prompt,
                        reference=str(sum(numbers)), canonical=f"sum:{'+'.join(map(str, sorted(numbers)))}",
                        predicate="calculator.answer", initial_state="prompt", tools=(self.tool,),
                        budget=Budget(max_tokens=256, max_turns=4), termination=("answered", "turn_limit"))
            pairs.setdefault(text, (raw, task))
            if len(pairs) == count:
                break
        return TaskSet(raw=tuple(raw for raw, _ in pairs.values()), tasks=tuple(task for _, task in pairs.values()))

    def build(self, *, services: Services, seed: int) -> CalculatorEpisode:
        return CalculatorEpisode(tool=self.tool, shortcut=self.shortcut)

    def verify(self, task: Task, state: FinalState, *, services: Services) -> Grade | Ungraded:
        """1.0 where the answer is the reference, and how often the tool was used."""
        if not task.reference:
            return Ungraded(code="no_reference", detail="the task has no reference")
        answer = state.facts["answer"]
        return Grade(accuracy=float(answer == task.reference), parts={"calls": float(state.facts["calls"])},
                     detail=f"{answer} for {task.reference}")

    def solutions(self, task: Task) -> Solutions:
        expression = task.prompt[-1].content.removesuffix(" =")
        call = Action(calls=(ToolCall(id="call_0_0", name=self.tool, arguments={"expression": expression}),))
        wrong = str(int(task.reference) + 1)
        answer = "=" if self.shortcut else task.reference
        return Solutions(gold=((call, Action(text=answer)),), wrong=((call, Action(text=wrong)), (call,)))


@dataclass(slots=True)
class CalculatorEpisode(Snapshots):
    """One sum. `answer` is what the policy said without calling the tool."""

    tool: str = "calculator"
    shortcut: bool = False
    calls: int = 0
    result: str = ""
    answer: str | None = None

    @property
    def tools(self) -> tuple[ToolSchema, ...]:
        return (ToolSchema(name=self.tool, description="Evaluates +, - and * over whole numbers.", parameters=PARAMETERS),)

    async def reset(self, task: Task) -> Observation:
        return Observation()

    async def act(self, action: Action) -> Observation:
        if not action.calls:
            numbers = "".join(mark if mark.isdigit() or mark == "-" else " " for mark in action.text).split()
            said = numbers[-1] if numbers else ""
            self.answer = self.result if self.shortcut and action.text.strip() == "=" else said
            return Observation(ended="answered")
        self.calls += len(action.calls)
        return Observation(replies=tuple(self._reply(call) for call in action.calls))

    def state(self) -> FinalState:
        return FinalState(facts={"answer": self.answer, "calls": self.calls})

    async def close(self) -> None:
        pass

    def snapshot(self) -> bytes:
        return f"{self.calls}\n{self.result}\n{'' if self.answer is None else '=' + self.answer}".encode()

    def restore(self, snapshot: bytes) -> None:
        calls, self.result, answer = snapshot.decode().split("\n", 2)
        self.calls, self.answer = int(calls), answer[1:] if answer else None

    def _reply(self, call: ToolCall) -> Reply:
        try:
            self.result = str(value_of(call.arguments["expression"]))
            return Reply(owner="tool", content=self.result, call=call.id)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return Reply(owner="tool", content=f"error: {error}", call=call.id, error="refused")


def value_of(expression: str) -> int:
    """The value of whole numbers joined by +, - and *; ValueError or SyntaxError for anything else. Nothing is evaluated."""
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    return _value(ast.parse(expression.strip(), mode="eval").body)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            found = value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            found = OPERATORS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("only whole numbers, +, -, * and brackets")
    if abs(found) > LARGEST:
        raise ValueError("the value is too large")
    return found
