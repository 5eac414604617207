"""A forger: a copy of a run with records changed, and every id, reference and hash of its log made to fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load, save

from rollbook.ledger import Ledger
from rollbook.ledger.chain import Entry, log_line
from rollbook.ledger.layout import segment_path, segments
from rollbook.ledger.objects import put_object
from rollbook.records import canonical, digest


def forge(run: Path, out: Path, change) -> Path:
    """`change(kind, body, number)` returns the new body, or None to leave the record out; `number` counts its kind from 1."""
    shutil.copytree(run, out)
    with Ledger.open(run, write=False) as ledger:
        events, genesis = list(ledger.events()), ledger.genesis
    renamed, seen, lines, prev = {}, {}, [], genesis
    for event in events:
        text = json.dumps(event.body)
        for old, new in renamed.items():
            text = text.replace(old, new)
        seen[event.kind] = seen.get(event.kind, 0) + 1
        body = change(event.kind, json.loads(text), seen[event.kind])
        if body is None:
            continue
        identity = f"{event.kind}:{digest(canonical({key: value for key, value in body.items() if key != 'observed'}))}"
        if identity != event.id:
            renamed[event.id] = identity
        entry = Entry(kind=event.kind, id=identity, schema=event.schema, body=canonical(body), observed=canonical(event.observed))
        line, prev = log_line(entry, prev, len(lines) + 1, event.time)
        lines.append(line)
    for path in segments(out):
        path.unlink()
    segment_path(out, 1).write_bytes(b"".join(lines))
    with Ledger.open(out, write=False) as ledger:
        assert ledger.verify().holds
    return out


def other_tensor(run: Path, blob: str, name: str, change) -> str:
    """Stores the blob again with one of its tensors changed in place; the new blob's hash."""
    with Ledger.open(run, write=False) as ledger:
        tensors = dict(load(ledger.get(blob)))
    changed = tensors[name].clone()
    change(changed)
    assert not (changed == tensors[name]).all()
    return put_object(run, bytes(save({**tensors, name: changed})))
