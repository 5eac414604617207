"""An agent that knows nothing of Rollbook: OpenAI's interface over plain HTTP, one tool of its workplace, its answer printed.

MODE: `plain` asks once more with what the tool said, `anew` begins its conversation anew with it, `fail` ends with status 3,
`hang` waits for ever, `silent` answers without asking the policy, `some` does so in half of its attempts.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def asked(address, document):
    request = urllib.request.Request(address, data=json.dumps(document).encode(), headers={
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"})
    with OPENER.open(request, timeout=60) as answer:
        return json.load(answer)


def chat(messages):
    return asked(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", {"model": "policy", "messages": messages})


def main(task, tool, mode):
    if mode == "fail":
        sys.exit(3)
    if mode == "hang":
        time.sleep(600)
    if mode == "silent" or (mode == "some" and os.environ["OPENAI_BASE_URL"].split("/")[-2][0] < "8"):
        print("4")
        return
    messages = [{"role": "user", "content": task}]
    first = chat(messages)["choices"][0]["message"]
    argument = (first["content"] or "")[:40]
    told = asked(f"{os.environ['ROLLBOOK_TOOLS']}/{tool}", {"expression": argument})["content"]
    if mode == "anew":
        messages = [{"role": "user", "content": f"in {os.getcwd()[-4:]}: {task}\n{told}"}]
    else:
        messages += [first, {"role": "user", "content": told}]
    print(chat(messages)["choices"][0]["message"]["content"])


try:
    main(*sys.argv[1:])
except urllib.error.HTTPError as error:
    print(error.read().decode(), file=sys.stderr)
    sys.exit(4)
