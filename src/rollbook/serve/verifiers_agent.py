"""One attempt by the agent loop of the `verifiers` library (0.4), as the command of `environment.agent`; prints the last answer.

Run by a Python in which `verifiers` and `uv` are installed, which need not hold Rollbook:
`python .../verifiers_agent.py TASK_FILE [HARNESS]`. The policy is found at OPENAI_BASE_URL. Standard library and verifiers only.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path


def main() -> None:
    """Plays one attempt at the task in the file with a harness of the library (`null`: its plain chat loop)."""
    import verifiers.v1 as vf
    from verifiers.v1.runtimes import SubprocessConfig

    task_file, harness = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "null"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"       # uv is beside it
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    config = vf.AgentConfig(model="policy", client=client, harness={"id": harness}, runtime=SubprocessConfig())
    task = vf.Task(vf.TaskData(idx=0, prompt=Path(task_file).read_text(encoding="utf-8")))
    trace = asyncio.run(vf.make_agent(config).run(task))
    said = [message for message in trace.messages if message.role == "assistant"]
    if not said:
        sys.exit(f"the policy was never asked: {getattr(trace, 'errors', '')}"[:400])
    print(said[-1].content or "")


if __name__ == "__main__":
    main()
