"""Every page over HTTP: what is asked is what is shown, nobody without the token comes in, and hostile text stays text."""

import html
import re
from urllib.parse import quote, unquote, urlsplit

import pytest
from starlette.requests import Request
from viewed_runs import HOSTILE, begin, client, hostile_run, whole_run

from rollbook.ledger import Ledger
from rollbook.records import LedgerError, StepReport, content_id
from rollbook.report.alerts import alerts
from rollbook.report.facts import read_facts
from rollbook.view.address import Address
from rollbook.view.app import parse
from rollbook.view.browse import NotFound
from rollbook.view.shown import held_runs
from rollbook.view.site import write_site


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("viewed") / "run"
    whole_run(folder)
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "<i>run"
    hostile_run(folder)
    return folder


def count(text):
    return int(re.search(r'id="count"[^>]*>(\d[\d,]*) of', text).group(1).replace(",", ""))


def first_row(folder, column="id", **where):
    rows = next(iter(held_runs([folder]).values())).refresh().rows
    return rows.where(*next(iter(where.items())))[0][column]


def test_every_page_of_a_whole_run_is_drawn(run):
    held = client(run)
    step = next(iter(Ledger.open(run, write=False).records(StepReport)))
    trace, group, task = (first_row(run, column, stage="rl") for column in ("id", "group", "task"))
    wanted = {"/": "Runs", "/run/run": "Census: where every attempt went", "/run/run/trajectories": "Trajectories",
              f"/run/run/trajectory?id={trace}": "What was learned from it", f"/run/run/group?id={quote(group)}": "Group of 4",
              f"/run/run/task?id={task}": "before and after", "/run/run/lineage": "<svg", "/run/run/evidence": "Every value",
              "/run/run/audit": "No audit is on record", f"/run/run/record?id={content_id(step)}": "StepReport",
              f"/run/run/record?id={trace}": "open it", f"/run/run/record?id={task}": "reference",
              "/compare": "Recipe values that differ"}
    for path, words in wanted.items():
        answer = held.get(path)
        assert answer.status_code == 200 and words in answer.text, path


def test_filters_show_exactly_what_passes_them(run):
    held = client(run)

    def asked(query=""):
        return count(held.get(f"/run/run/trajectories?{query}").text)

    total = asked()
    assert total == 4 + 4 + 16 + 16 + 2 + 16 + 4
    assert asked("stage=rl") == 32 and asked("stage=rl&outcome=uniform") == 16 and asked("stage=rl&outcome=truncated") == 4
    assert asked("verdict=Unscored") == 2 and asked("failure_code=timeout") == 2 and asked("failure_code=none") == total - 2
    assert asked("answer=right") == total - 2 and asked("answer=none") == 2 and asked("answer=wrong") == 0
    assert asked("component=format&least=0.25") == total - 2 and asked("component=format&most=0.2") == 0
    assert asked("version=1") == 20 + 16 and asked("text=7") == total and asked("text=nowhere") == 0
    assert asked(f"task={first_row(run, 'task', stage='rl')}&stage=rl") == 8
    assert asked("family=sums") + asked("family=products") == total


def test_a_filter_that_cannot_be_read_is_said_and_not_used(run):
    text = client(run).get("/run/run/trajectories?version=x&least=nan&sort=up&page=zz").text
    assert count(text) == 62 and text.count("Not used:") == 4
    assert client(run).get("/run/run/trajectories?page=999999999999999").status_code == 200
    assert "page 2 of 2" in client(run).get("/run/run/trajectories?page=99").text


def test_addresses_that_lead_nowhere_are_not_found(run):
    held = client(run)
    for path in ("/run", "/run/other", "/run/run/nothing", "/run/run/trajectory?id=Trace:0", "/run/run/group?id=x",
                 "/run/run/task?id=x",
                 "/run/run/record?id=x", "/compare?runs=other", "/static/../app.py", "/static/pages.py", "/run/run/trajectory"):
        assert held.get(path).status_code == 404, path


def test_an_address_reads_back_as_what_it_was_written_for():
    group = "rl/000001/0/Task:<b>/ö?&#%00 ../x"
    for address in (Address(page="runs"), Address(page="overview", run="a"), Address(page="compare", asked={"runs": "a,b"}),
                    Address(page="group", run="a b", name=group),
                    Address(page="trajectories", run="a", asked={"text": "a&b=ü "})):

        parts = urlsplit(address.url)
        request = Request({"type": "http", "query_string": parts.query.encode(), "headers": []})
        assert parse(unquote(parts.path), dict(request.query_params)) == address
    with pytest.raises(NotFound):
        parse("/run/a/b/c/d", {})


def test_nobody_comes_in_without_the_token_and_the_token_does_not_stay_in_the_address(run):
    held = client(run, token="secret")
    for path in ("/", "/?token=wrong", "/live", "/static/view.js"):
        assert held.get(path).status_code == 401, path
    assert "Runs" not in held.get("/?token=").text
    entered = held.get("/run/run/trajectories?stage=rl&token=secret")
    assert entered.status_code == 303 and entered.headers["location"] == "/run/run/trajectories?stage=rl"
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert held.get("/").status_code == 200


def test_another_host_name_reaches_nothing_and_only_reading_is_answered(run):
    held = client(run, hosts=frozenset({"127.0.0.1", "testserver"}))
    assert held.get("/").status_code == 200
    assert held.get("/", headers={"host": "evil.example:80"}).status_code == 421
    assert held.get("/", headers={"host": ""}).status_code == 421
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert held.request(method, "/").status_code == 405
    assert held.get("/?q=" + "a" * 9000).status_code == 414


def test_pages_may_run_no_script_but_their_own_and_reach_no_other_server(run):
    answer = client(run).get("/run/run")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    assert not re.search(r"<script(?! src=\"/static/view\.js\" defer>)|\son\w+=|javascript:|https?://(?!www\.w3\.org)",
                         answer.text)


def test_hostile_text_is_shown_as_text_on_every_page(hostile):
    held = client(hostile)
    name = next(iter(held_runs([hostile])))
    trace, group, task = (first_row(hostile, column, stage="rl") for column in ("id", "group", "task"))
    for path in (f"/run/{name}", f"/run/{name}/trajectories", f"/run/{name}/trajectory?id={trace}", f"/run/{name}/audit",
                 f"/run/{name}/group?id={quote(group)}", f"/run/{name}/task?id={task}", "/compare", "/",
                 f"/run/{name}/trajectories?text={quote(HOSTILE[:200])}"):
        answer = held.get(path)
        assert answer.status_code == 200, path
        text = answer.text
        assert "<script>window" not in text and "<img src=x" not in text and "<svg/onload" not in text and "<b>g</b>" not in text
        assert not set("\x1b\x00\x08\x07‮") & set(text) and "49" not in re.findall(r"\{\{.*?\}\}", html.unescape(text))
        assert len(text) < 900_000, "a line of a megabyte is not put into a page whole"


def test_a_trajectory_of_a_megabyte_is_found_by_a_text_in_its_middle(hostile):
    name = next(iter(held_runs([hostile])))
    assert count(client(hostile).get(f"/run/{name}/trajectories?text=" + "A" * 40).text) == 20


def test_an_empty_run_a_damaged_one_and_one_in_progress_are_drawn_with_what_is_missing(tmp_path):
    empty = begin(tmp_path / "empty")
    empty.ledger.close()
    broken = tmp_path / "broken"
    whole_run(broken)
    log = sorted((broken / "events").iterdir())[-1]
    lines = log.read_bytes().splitlines(keepends=True)
    lines[len(lines) // 2] = lines[len(lines) // 2].replace(b'"seq"', b'"sex"')
    log.write_bytes(b"".join(lines))
    for file in (broken / "traces").glob("*rl-000001*"):
        file.write_bytes(b"no parquet")
    held = client(tmp_path / "empty", broken)
    for path in ("/", "/compare", "/run/empty", "/run/empty/trajectories", "/run/empty/lineage", "/run/empty/evidence",
                 "/run/broken", "/run/broken/trajectories", "/run/broken/audit"):
        assert held.get(path).status_code in (200, 500), path
    assert "No trajectory is on record yet" in held.get("/run/empty/trajectories").text
    assert "could not be read completely" in held.get("/run/broken").text
    assert "hash" in held.get("/run/broken/trajectories").text or count(held.get("/run/broken/trajectories").text) > 0


def test_a_growing_run_shows_what_was_added(tmp_path, monkeypatch):
    monkeypatch.setattr("rollbook.view.held.FRESH_S", 0.0)
    writer = begin(tmp_path / "growing")
    held = client(tmp_path / "growing")
    sizes = [held.get("/live").json()["growing"]]
    assert count(held.get("/run/growing/trajectories").text) == 0
    for number in (1, 2):
        writer.step(number)
        sizes.append(held.get("/live").json()["growing"])
        assert count(held.get("/run/growing/trajectories").text) == 16 * number
    assert sizes == sorted(set(sizes)) and "not ended" in held.get("/run/growing").text
    writer.ledger.close()


def test_another_run_in_the_place_of_one_that_is_looked_at_is_shown_and_nothing_of_the_old_one(tmp_path, monkeypatch):
    monkeypatch.setattr("rollbook.view.held.FRESH_S", 0.0)
    whole_run(tmp_path / "here")
    run = held_runs([tmp_path / "here"])["here"].refresh()
    before = set(run.rows.column("id").to_pylist())
    (tmp_path / "here").rename(tmp_path / "gone")
    hostile_run(tmp_path / "here")
    after = set(run.refresh().rows.column("id").to_pylist())
    assert after and before != after
    assert after == set(next(iter(held_runs([tmp_path / "here"]).values())).refresh().rows.column("id").to_pylist())


def test_the_same_pages_as_files_need_no_server_and_link_only_to_each_other(run, tmp_path):
    pages, left = write_site([run], tmp_path / "site")
    files = {file.name for file in (tmp_path / "site").iterdir()}
    assert left == 0 and pages > 60 and {"index.html", "run-overview.html", "view.js", "view.css", "report.css"} <= files
    for file in (tmp_path / "site").glob("*.html"):
        text = file.read_text(encoding="utf-8")
        targets = re.findall(r'(?:href|src)="([^"]*)"', text)
        assert {target.partition("#")[0] for target in targets if not target.startswith(("data:", "#"))} <= files, file
        assert "<form class" not in text and "data-served" not in text
    with pytest.raises(LedgerError, match="exists"):
        write_site([run], tmp_path / "site")


def test_what_is_no_run_is_refused_before_anything_is_served(tmp_path):
    with pytest.raises(LedgerError, match="not a run folder"):
        held_runs([tmp_path])


def test_two_runs_of_one_name_have_two_addresses(run, tmp_path):
    whole_run(tmp_path / "run")
    assert list(held_runs([run, tmp_path / "run"])) == ["run", "run-2"]
    assert alerts(read_facts(run)) == ()
