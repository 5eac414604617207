"""`rollbook rewards judge`: a judge behind a server against labelled pairs, and what is counted when it or they are broken."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from rollbook.cli import main

ROWS = [{"task": f"{n} + 1 =", "one": str(n + 1), "other": f"about {n}", "better": "one",
         "source": "sums"} for n in range(4)] + [
    {"task": f"{n} + 2 =", "one": f"about {n}", "other": str(n + 2), "better": "other"} for n in range(4)]
BROKEN = [b"{", b"[1]", json.dumps({**ROWS[0], "better": "first"}).encode(), b'{"task": "\xff"}',
          json.dumps({**ROWS[0], "one": 7}).encode(), json.dumps({**ROWS[0], "other": "\ud800"}).encode()]


@pytest.fixture
def serve():
    """Starts servers that answer every question with what a function makes of its text."""
    started = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = answer(asked["messages"][-1]["content"])
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        started.append(made)
        return f"http://127.0.0.1:{made.server_port}/v1"

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


def preferring(first):
    """An answer whose first token is A with this probability."""
    shown = [{"token": "A", "logprob": math.log(first)}, {"token": "B", "logprob": math.log(1 - first)}]
    return json.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": shown}]}}]}).encode()


def honest(text):
    """Prefers the response that is a plain number, wherever it stands."""
    first = text.split("Response A:\n")[1].split("\n")[0]
    return preferring(0.9 if first.isdigit() else 0.2)


def asked(folder, url, rows, *more):
    (folder / "pairs.jsonl").write_bytes(b"\n".join(rows))
    return CliRunner().invoke(main, ["rewards", "judge", str(folder / "pairs.jsonl"), "--model", "m", "--server", url, *more])


def test_a_judge_is_compared_with_labels_in_both_orders_and_broken_rows_are_counted(tmp_path, serve):
    result = asked(tmp_path, serve(honest), [*(json.dumps(row).encode() for row in ROWS), *BROKEN], "--out",
                   str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert ("unreadable rows: better is neither one nor other 1, no text under one 1, no text under other 1, not JSON 1, "
            "not UTF-8 1, not an object 1") in result.output
    assert "agreement with the labels 100.0% of 8" in result.output and "kappa 1.00" in result.output
    assert "contradict in 0.0% of the pairs" in result.output and "sums: 100.0% of 4" in result.output
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert len(lines) == 8 and all(line["judge"]["digest"] and line["preferred"]["probability"] != 0.5 for line in lines)


def test_a_judge_that_always_takes_the_first_place_has_no_verdict_and_is_called_biased(tmp_path, serve):
    rows = [json.dumps(row).encode() for row in ROWS]
    result = asked(tmp_path, serve(lambda text: preferring(0.8)), rows)
    assert result.exit_code == 1 and "no verdict: undecided 8" in result.output
    assert "the first place wins 100.0% of 16 questions" in result.output and "contradict in 100.0%" in result.output


@pytest.mark.parametrize(("body", "code"), [(b"nonsense", "malformed"), (b"{}", "malformed"), (b'{"choices": [1]}', "malformed"),
                                            (b'{"choices": [{"logprobs": {"content": []}}]}', "malformed")])
def test_a_judge_that_answers_nonsense_is_counted_by_its_reason_and_decides_nothing(tmp_path, serve, body, code):
    result = asked(tmp_path, serve(lambda text: body), [json.dumps(row).encode() for row in ROWS])
    assert result.exit_code == 1 and f"no verdict: {code} 8" in result.output and "agreement" not in result.output


def test_without_a_readable_pair_nothing_is_asked(tmp_path, serve):
    result = asked(tmp_path, serve(honest), BROKEN)
    assert result.exit_code == 2 and "no labelled pair can be read" in result.output
