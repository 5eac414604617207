"""Judges that are asked in words: what is a verdict, what is nonsense, and that the place of a response decides nothing."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from answered import task, trace

from rollbook.records import Completion, Fault, Message, Question, Rated, Unrated
from rollbook.records.demonstrating import Principle
from rollbook.rewards import RewardError
from rollbook.rewards.judges import (
    Constitution,
    LocalChat,
    Pair,
    PairwiseJudge,
    PairwiseScorer,
    Preferred,
    RubricJudge,
    ServerChat,
    agreement,
    position_bias,
)
from rollbook.rewards.judges.options import probabilities

SEVEN = task()
PRINCIPLE = Principle(critique="Say what is wrong.", revision="Make it right.", choice="Which is right?")


class Chat:
    """Answers by a function of the question's text; options by another."""

    name = "fake"

    def __init__(self, answer=lambda text: "5", options=lambda text, options: [math.log(1 / len(options))] * len(options),
                 digest="d"):
        self._answer, self._options, self.digest, self.asked = answer, options, digest, []

    def answer(self, questions, *, max_tokens):
        self.asked += [question.messages[-1].content for question in questions]
        return [self._answer(question.messages[-1].content) for question in questions]

    def option_logps(self, questions, options):
        return [self._options(question.messages[-1].content, options) for question in questions]


def score(judge, *texts):
    return judge.score([trace(text, SEVEN, sample=place) for place, text in enumerate(texts)], {SEVEN.id: SEVEN})


def test_a_rubric_is_the_weighted_mean_of_its_grades_on_0_to_1():
    chat = Chat(lambda text: "5" if "short" in text else "Grade: 2.")
    [rated] = score(RubricJudge(chat, {"It is short.": 1.0, "It is right.": 3.0}), "7")
    assert rated == Rated(value=(1.0 * 1 + 3.0 * 0.25) / 4, detail="grades 5, 2 of 1 to 5")


@pytest.mark.parametrize("nonsense", ["", "great!", "7", "0", "4 or 5", "-3", "five", "Grade: -3", "I refuse to give a 1",
                                      "4/10", "Response 2 is better", "The 3 steps", "1. The", "9" * 400])
def test_a_judge_that_answers_nonsense_leaves_the_response_unrated(nonsense):
    [found] = score(RubricJudge(Chat(lambda text: nonsense), {"It is right.": 1.0}), "7")
    assert isinstance(found, Unrated) and found.code == "malformed"


@pytest.mark.parametrize("said", ["4", "4.", "**4**", "Grade: 4", "The grade is 4.", "my rating is: 4", "4/5",
                                  "4 out of 5", " 4.0\n"])
def test_a_grade_may_be_said_in_the_common_ways(said):
    [found] = score(RubricJudge(Chat(lambda text: said), {"It is right.": 1.0}), "7")
    assert found == Rated(value=0.75, detail="grades 4 of 1 to 5")


def test_one_nonsense_answer_costs_one_response_its_rating_and_no_other():
    chat = Chat(lambda text: "?" if "eight" in text else "4")
    assert [type(one) for one in score(RubricJudge(chat, {"x": 1.0}), "seven", "eight", "nine")] == [Rated, Unrated, Rated]


def test_by_logprobs_the_grade_is_an_expectation_and_mass_elsewhere_is_no_grade():
    half = Chat(options=lambda text, options: [math.log(0.3), -math.inf, -math.inf, -math.inf, math.log(0.1)])
    [rated] = score(RubricJudge(half, {"x": 1.0}, method="logprobs"), "7")
    assert rated.value == pytest.approx(0.25)
    absent = Chat(options=lambda text, options: [math.log(1e-4)] * len(options))
    [found] = score(RubricJudge(absent, {"x": 1.0}, method="logprobs"), "7")
    assert isinstance(found, Unrated) and found.code == "malformed"


def test_the_reference_is_shown_to_a_judge_that_needs_it_and_only_to_it():
    secret = task(reference="forty-two")
    for with_reference in (True, False):
        chat = Chat()
        RubricJudge(chat, {"x": 1.0}, with_reference=with_reference).score([trace("7", secret)], {secret.id: secret})
        assert ("forty-two" in chat.asked[0]) == with_reference
    [found] = RubricJudge(Chat(), {"x": 1.0}, with_reference=True).score([trace("7", task(reference=" "))],
                                                                         {(t := task(reference=" ")).id: t})
    assert isinstance(found, Unrated) and found.code == "no_reference"


def test_braces_in_a_response_are_text():
    chat = Chat()
    score(RubricJudge(chat, {"x": 1.0}), "{criterion} {task}")
    assert "{criterion} {task}" in chat.asked[0]


def test_prompt_criteria_scale_and_model_are_in_the_stamp():
    one = RubricJudge(Chat(), {"x": 1.0}).stamp.digest
    others = [RubricJudge(Chat(), {"y": 1.0}), RubricJudge(Chat(digest="e"), {"x": 1.0}), RubricJudge(Chat(), {"x": 1.0}, high=7),
              RubricJudge(Chat(), {"x": 1.0}, template="{response}"), RubricJudge(Chat(), {"x": 1.0}, method="logprobs")]
    assert len({one, *(other.stamp.digest for other in others)}) == 6
    assert RubricJudge(Chat(), {"x": 1.0}).stamp.digest == one


def favouring(first=0.0, good="good"):
    """Options for a judge that likes `good` and, by `first`, whatever stands first."""
    def options(text, options):
        better = text.index("Response A:") < text.index(good) < text.index("Response B:")
        probability = min(max((0.8 if better else 0.2) + first, 0.0), 1.0)
        return [math.log(p) if p else -math.inf for p in (probability, 1 - probability)]
    return options


def test_both_orders_cancel_a_bias_to_the_first_place():
    for bias in (0.0, 0.1, -0.15):
        [found] = PairwiseJudge(Chat(options=favouring(bias))).compare([Pair(task="t", one="good", other="bad")])
        assert found.probability == pytest.approx(0.8)


def test_swapping_the_pair_is_one_minus_the_preference():
    judge = PairwiseJudge(Chat(options=favouring(0.1)))
    one, other = judge.compare([Pair(task="t", one="good", other="bad"), Pair(task="t", one="bad", other="good")])
    assert one.probability + other.probability == pytest.approx(1.0)


def test_a_pair_with_nonsense_in_one_order_has_no_preference():
    chat = Chat(lambda text: "A" if text.index("good") < text.index("bad") else "both are fine")
    [found] = PairwiseJudge(chat, method="text").compare([Pair(task="t", one="good", other="bad")])
    assert isinstance(found, Unrated) and found.code == "malformed"


def test_the_win_rate_compares_every_pair_of_a_group_and_no_pair_across_groups():
    chat = Chat(lambda text: "A" if text.index("good") < text.index("Response B:") else "B")
    traces = [trace("good", SEVEN, sample=0), trace("bad", SEVEN, sample=1), trace("good", SEVEN, group="h")]
    found = PairwiseScorer(PairwiseJudge(chat, method="text")).score(traces, {SEVEN.id: SEVEN})
    assert [getattr(one, "value", None) for one in found] == [1.0, 0.0, None]


def test_a_response_is_criticised_and_revised_by_drawn_principles_as_often_as_asked():
    chat = Chat(lambda text: "too short" if text.endswith("Critique:") else f"longer {text.count('longer')}")
    two = [PRINCIPLE, Principle(critique="a", revision="b", choice="c")]
    revised = Constitution(chat, two).revise("t", "short", seed=1)
    assert len(revised.rounds) == 4 and revised.final.startswith("longer") and revised.first == "short"
    assert revised == Constitution(chat, two).revise("t", "short", seed=1)
    assert {one.principle for seed in range(8)
            for one in Constitution(chat, two).revise("t", "short", seed=seed).rounds} == {0, 1}


def test_a_label_is_averaged_over_principles_and_orders_and_clamped_only_behind_reasoning():
    def options(text, options):
        first = text.index("good") < text.index("bad")
        return [math.log(0.9), math.log(0.1)] if first else [math.log(0.3), math.log(0.7)]
    chat = Chat(options=options)
    pair = Pair(task="t", one="good", other="bad")
    assert Constitution(chat, [PRINCIPLE]).label(pair).probability == pytest.approx((0.9 + 0.7) / 2)
    assert Constitution(chat, [PRINCIPLE]).label(pair, reasoning=True).probability == pytest.approx(0.6)
    silent = Chat(options=lambda text, options: Unrated(code="timeout", detail="x"))
    assert isinstance(Constitution(silent, [PRINCIPLE]).label(pair), Unrated)


def test_a_principle_without_an_answer_is_counted_and_the_others_label():
    def options(text, options):
        return [math.log(0.8), math.log(0.2)] if "Which is right?" in text else Unrated(code="timeout", detail="x")
    found = Constitution(Chat(options=options), [PRINCIPLE, Principle(critique="a", revision="b", choice="c")]).label(
        Pair(task="t", one="good", other="bad"))
    assert (found.asked, found.failed, found.probability) == (4, 2, pytest.approx(0.5))


def test_agreement_is_the_share_and_kappa_what_is_beyond_chance():
    found = agreement(["a", "b", "a", "b", Unrated(code="timeout", detail="")], ["a", "b", "b", "b", "a"])
    assert (found.count, found.unrated, found.share) == (4, 1, 0.75)
    assert found.kappa == pytest.approx((0.75 - 0.5) / 0.5)
    assert found.low < 0.75 < found.high
    assert agreement(["a"], ["a"]).kappa is None
    with pytest.raises(RewardError):
        agreement([Unrated(code="timeout", detail="")], ["a"])


def test_a_judge_that_always_takes_the_first_place_is_seen():
    biased = [Preferred(one_first=0.9, one_second=0.1, probability=0.5)] * 12
    fair = [Preferred(one_first=0.9, one_second=0.9, probability=0.9),
            Preferred(one_first=0.1, one_second=0.1, probability=0.1)] * 6
    found, none = position_bias(biased), position_bias(fair)
    assert (found.first_share, found.contradicting) == (1.0, 1.0) and found.p_value < 0.001
    assert (none.first_share, none.contradicting, none.p_value) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize("logps", [(0.1, 0.1), (math.nan, 0.0), (-20.0, -20.0), (-math.inf, -math.inf)])
def test_what_is_no_probability_of_options_is_no_answer(logps):
    assert isinstance(probabilities(logps), Unrated)


class Engine:
    """An engine over characters: says its text, and gives each given token half a nat."""

    def sample(self, requests):
        faults = [Fault(code="context", detail="x") if one.prompt_ids[0] == ord("!") else None for one in requests]
        return [Completion(key=one.key, token_ids=() if fault else (52,), logps=() if fault else (-0.1,), fault=fault,
                           versions=() if fault else (0,), stop_reason="failed" if fault else "length", latency_s=0.0)
                for one, fault in zip(requests, faults, strict=True)]

    def logprobs(self, token_ids, given):
        return (-0.5,) * (len(token_ids) - given)


class Characters:
    stop_ids, digest, template_digest = frozenset({0}), "t", "u"

    def prompt(self, messages):
        return tuple(map(ord, messages[-1].content))

    def encode(self, text):
        return tuple(map(ord, text))

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_a_local_model_answers_what_fits_its_context_and_scores_options_by_all_their_tokens():
    chat = LocalChat(Engine(), Characters(), name="tiny", weights="w", context=64)
    pairwise = PairwiseJudge(chat, method="text")
    [found] = pairwise.compare([Pair(task="t" * 90, one="a", other="b")])
    assert isinstance(found, Unrated) and found.code == "unavailable"
    questions = [Question(key="k", messages=(Message(role="user", content=text),)) for text in ("hello", "!no", "hello")]
    assert [getattr(one, "code", one) for one in chat.answer(questions, max_tokens=1)] == ["4", "unavailable", "4"]
    assert chat.option_logps(questions[:1], ("A", "BC")) == [(-0.5, -1.0)]
    assert LocalChat(Engine(), Characters(), name="tiny", weights="v", context=64).digest != chat.digest


REPLIES = {
    "good": {"choices": [{"message": {"content": "4"}, "logprobs": {"content": [{"top_logprobs": [
        {"token": " A", "logprob": math.log(0.5)}, {"token": "A", "logprob": math.log(0.1)},
        {"token": "B", "logprob": math.log(0.2)}]}]}}]},
    "empty": {"choices": []}, "odd": ["nothing"], "silent": {"choices": [{"message": {"content": None}}]},
}


@pytest.fixture(scope="module")
def server():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"]
            self.send_response(500 if text == "broken" else 200)
            self.end_headers()
            self.wfile.write(b"{not json" if text == "torn" else json.dumps(REPLIES.get(text, REPLIES["empty"])).encode())

        def log_message(self, *_):
            pass
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}/v1"
    made.shutdown()


def test_a_server_is_asked_and_each_question_it_fails_at_is_unrated_with_its_reason(server):
    chat = ServerChat(server, "m", seconds=20.0)
    questions = [Question(key=text, messages=(Message(role="user", content=text),)) for text in
                 ("good", "empty", "odd", "silent", "torn", "broken")]
    assert [getattr(one, "code", one) for one in chat.answer(questions, max_tokens=4)] == [
        "4", "malformed", "malformed", "malformed", "malformed", "unavailable"]
    [options, *_] = chat.option_logps(questions[:1], ("A", "B", "C"))
    assert options == pytest.approx((math.log(0.6), math.log(0.2), -math.inf))
    assert [one.code for one in chat.option_logps(questions[1:4], ("A",))] == ["malformed"] * 3


def test_a_server_that_is_not_there_is_unavailable_and_no_address_is_refused():
    [found] = ServerChat("http://127.0.0.1:9/v1", "m", seconds=5.0).answer(
        [Question(key="k", messages=(Message(role="user", content="x"),))], max_tokens=1)
    assert isinstance(found, Unrated) and found.code in ("unavailable", "timeout")
    with pytest.raises(RewardError):
        ServerChat("file:///etc/passwd", "m")


@pytest.mark.parametrize(("reply", "code"), [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{}", "unavailable"), (b"nonsense\r\n\r\n", "unavailable"),
    (b"", "unavailable"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", "unavailable"),
    (b'HTTP/1.1 200 OK\r\n\r\n{"choices": [{"message": {"content": "4 \\ud800"}}]}', "malformed")])
def test_a_server_that_speaks_no_http_or_half_of_it_costs_one_question_its_answer(reply, code):
    with raw_server(lambda connection: connection.sendall(reply)) as url:
        [found] = ServerChat(url, "m", seconds=5.0).answer([question("x")], max_tokens=1)
    assert isinstance(found, Unrated) and found.code == code


def test_a_server_that_answers_byte_by_byte_is_cut_at_the_limit():
    def drip(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b" ")
                time.sleep(0.02)
    with raw_server(drip) as url:
        [found] = ServerChat(url, "m", seconds=0.2).answer([question("x")], max_tokens=1)
    assert isinstance(found, Unrated) and found.code == "timeout"


def question(text):
    return Question(key="k", messages=(Message(role="user", content=text),))


@contextlib.contextmanager
def raw_server(answered):
    """A socket that reads one request and answers it by bytes alone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(5.0)
                seen = b""
                while b'"messages"' not in seen:
                    seen += connection.recv(65536)
                answered(connection)
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        thread.join(5.0)
