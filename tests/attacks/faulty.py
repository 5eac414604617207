"""A small run with some functions of the producer replaced. The slow proof of its environment is made once for all runs."""

from attacked import attacked

from rollbook.audit import passage
from rollbook.audit.detector import Row
from rollbook.audit.index import RunIndex
from rollbook.ledger import Ledger
from rollbook.orchestration import run as orchestration
from rollbook.records import content_id

PROVED, CLEAN = {}, {}


def clean_run(warm, folders):
    """One run without a fault, made once for all the files that ask for it."""
    if warm not in CLEAN:
        CLEAN[warm] = attacked(warm, folders.mktemp("clean") / "run")
    return CLEAN[warm]


def faulty(monkeypatch, warm, out, *faults, overrides=()):
    """The run's folder. Each fault is (where, name, replacement); all are undone when the run has ended."""
    prove = orchestration.prove

    def once(image, *rest):
        name = content_id(image)
        if name not in PROVED:
            PROVED[name] = prove(image, *rest)
        return PROVED[name]

    with monkeypatch.context() as patch:
        patch.setattr(orchestration, "prove", once)
        for where, name, replacement in faults:
            patch.setattr(where, name, replacement)
        return attacked(warm, out, *overrides)


def reread(path, detector, *, record=lambda run, one: one, row=lambda one: one, step=lambda one: one):
    """The detector's row over a run whose records, trajectories and steps are changed on the way to it; None leaves one out."""
    ledger = Ledger.open(path, write=False)
    run, steps = RunIndex(ledger), passage._Steps(ledger)

    def show(identity, one):
        changed = record(run, one)
        if changed is not None:
            run.take(identity, changed)
            detector.record(run, identity, changed)

    for event in ledger.events():
        run.seq, run.position, run.table = event.seq, event.position, event.body.get("name") if "Table" in event.kind else None
        if event.kind == "RecordTable":
            for one in ledger.table_records(event):
                show(content_id(one), one)
            continue
        show(event.id, event.record())
        if event.kind == "TraceTable":
            for identity, (trace, verdict, outcome) in ledger.rows(event):
                changed = row(Row(id=identity, trace=trace, verdict=verdict, outcome=outcome))
                if changed is not None:
                    run.recent.add(changed.id, changed.trace, changed.verdict)
                    detector.row(run, changed)
        elif (joined := steps.take(event.id, event.record())) is not None:
            detector.step(run, step(joined))
    detector.finish(run)
    return detector.result()
