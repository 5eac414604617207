"""Which processes of a sandbox are the programs themselves."""

from pathlib import Path

from rollbook.environments.sandbox.usage import tree


def programs(root: int) -> list[int]:
    """Processes of programs below a process: neither bubblewrap, nor its interpreter, nor a process 1."""
    found = []
    for process in tree(root):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        levels = status.partition("NSpid:")[2].partition("\n")[0].split()
        if len(levels) > 2 and levels[-1] != "1":
            found.append(process)
    return found
